// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

/// @title Which node key speaks for a wallet.
/// @notice A wallet binds one ed25519 key for each role. The chain cannot verify ed25519, so a binding holds only if
/// `nodeSignature` in its event is the key's signature over `digest(...)`: readers check it (RFC 8032, strict) and
/// ignore bindings without one. For the same reason a key is never "taken": whoever bound somebody else's key
/// first would keep its owner out.
interface IRegistry {
    /// @notice A wallet says that a key speaks for it. The digest that both signed follows from the fields.
    event Bound(
        address indexed wallet,
        bytes32 indexed role,
        bytes32 indexed nodeKey,
        uint256 nonce,
        uint64 deadline,
        bytes nodeSignature
    );
    /// @notice No key speaks for the wallet in this role any more.
    event Revoked(address indexed wallet, bytes32 indexed role, bytes32 indexed nodeKey);

    /// @notice Signed by somebody else, for another registry or chain, used before, or not in canonical form.
    error BadSignature();
    /// @notice The time to use the signature is over.
    error WindowClosed(uint64 moment);
    /// @notice Nothing is bound.
    error Missing(string what);
    /// @notice A key of zeros, or a node signature that is not 64 bytes long.
    error Meaningless(string what);

    /// @notice The key bound to a wallet in a role; zeros for none.
    function keyOf(address wallet, bytes32 role) external view returns (bytes32);

    /// @notice What wallet and node key sign: EIP-712 `Bind(address wallet,bytes32 nodeKey,bytes32 role,uint256 nonce,
    /// uint64 deadline)`, with the wallet's next nonce. `role` is ASCII text, filled up with zeros.
    function digest(address wallet, bytes32 nodeKey, bytes32 role, uint64 deadline)
        external
        view
        returns (bytes32);

    /// @notice Binds a key to the sender.
    /// @dev Effects: replaces the role's key; uses up the wallet's nonce; emits `Bound`.
    /// Requirements: a key, and 64 bytes of signature (`Meaningless`); `deadline` has not passed (`WindowClosed`).
    function bind(bytes32 nodeKey, bytes32 role, uint64 deadline, bytes calldata nodeSignature)
        external;

    /// @notice Binds a key to a wallet that has signed for it (a contract wallet by ERC-1271).
    /// @dev As `bind`; the wallet's signature takes the place of its transaction (`BadSignature`).
    function bindFor(
        address wallet,
        bytes32 nodeKey,
        bytes32 role,
        uint64 deadline,
        bytes calldata walletSignature,
        bytes calldata nodeSignature
    ) external;

    /// @notice Takes the sender's binding back; its outstanding signatures become worthless.
    /// @dev Effects: clears the role's key; uses up the wallet's nonce; emits `Revoked`.
    /// Requirements: a key is bound (`Missing`).
    function revoke(bytes32 role) external;
}
