// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

/// @title Registry of node keys.
/// @notice A wallet binds one ed25519 key per role. The chain cannot verify ed25519, so a binding
/// is valid only if `nodeSignature` in its event is the key's signature over `digest(...)`: readers
/// verify it (RFC 8032, strict) and ignore bindings without a valid one. For the same reason
/// several wallets may bind the same key: otherwise an account that binds a foreign key first would
/// lock out its owner.
interface IRegistry {
    /// @notice A wallet bound a key. The digest that both signed can be computed from the fields.
    event Bound(
        address indexed wallet,
        bytes32 indexed role,
        bytes32 indexed nodeKey,
        uint256 nonce,
        uint64 deadline,
        bytes nodeSignature
    );
    /// @notice The wallet has no key in this role any more.
    event Revoked(address indexed wallet, bytes32 indexed role, bytes32 indexed nodeKey);

    /// @notice Signed by another account, for another registry or chain, already used, or not in
    /// canonical form.
    error InvalidSignature();
    /// @notice The deadline of the signature has passed.
    error WindowClosed(uint64 moment);
    /// @notice No key is bound.
    error NotFound(string reason);
    /// @notice The key is zero, or the node signature is not 64 bytes long.
    error InvalidArgument(string reason);

    /// @notice The key bound to a wallet in a role; zero if there is none.
    function keyOf(address wallet, bytes32 role) external view returns (bytes32);

    /// @notice The digest that wallet and node key sign: EIP-712 `Bind(address wallet,bytes32
    /// nodeKey,bytes32 role,uint256 nonce,uint64 deadline)`, with the wallet's next nonce. `role`
    /// is ASCII text, padded with zeros.
    function digest(address wallet, bytes32 nodeKey, bytes32 role, uint64 deadline)
        external
        view
        returns (bytes32);

    /// @notice Binds a key to the sender.
    /// @dev Effects: replaces the role's key; increments the wallet's nonce; emits `Bound`.
    /// Requirements: the key is not zero and the signature has 64 bytes (`InvalidArgument`);
    /// `deadline` has not passed (`WindowClosed`).
    function bind(bytes32 nodeKey, bytes32 role, uint64 deadline, bytes calldata nodeSignature)
        external;

    /// @notice Binds a key to a wallet that has signed it (a contract wallet by ERC-1271).
    /// @dev As `bind`, with the wallet's signature instead of its transaction (`InvalidSignature`).
    function bindFor(
        address wallet,
        bytes32 nodeKey,
        bytes32 role,
        uint64 deadline,
        bytes calldata walletSignature,
        bytes calldata nodeSignature
    ) external;

    /// @notice Revokes the sender's binding and invalidates its outstanding signatures.
    /// @dev Effects: clears the role's key; increments the wallet's nonce; emits `Revoked`.
    /// Requirements: a key is bound (`NotFound`).
    function revoke(bytes32 role) external;
}
