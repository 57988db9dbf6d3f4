// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {Nonces} from "@openzeppelin/contracts/utils/Nonces.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SignatureChecker} from
    "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";
import {IRegistry} from "./interfaces/IRegistry.sol";

/// @title Node keys of wallets. `IRegistry` documents all functions.
contract Registry is IRegistry, EIP712, Nonces {
    bytes32 private constant BIND_TYPE = keccak256(
        "Bind(address wallet,bytes32 nodeKey,bytes32 role,uint256 nonce,uint64 deadline)"
    );
    uint256 private constant NODE_SIGNATURE_LENGTH = 64;

    mapping(address wallet => mapping(bytes32 role => bytes32)) private _keys;

    constructor() EIP712("Florin", "1") {}

    /// @inheritdoc IRegistry
    function bind(bytes32 nodeKey, bytes32 role, uint64 deadline, bytes calldata nodeSignature)
        external
    {
        _bind(msg.sender, nodeKey, role, deadline, nodeSignature);
    }

    /// @inheritdoc IRegistry
    function bindFor(
        address wallet,
        bytes32 nodeKey,
        bytes32 role,
        uint64 deadline,
        bytes calldata walletSignature,
        bytes calldata nodeSignature
    ) external {
        bytes32 signed = digest(wallet, nodeKey, role, deadline);
        if (!SignatureChecker.isValidSignatureNowCalldata(wallet, signed, walletSignature)) {
            revert InvalidSignature();
        }
        _bind(wallet, nodeKey, role, deadline, nodeSignature);
    }

    /// @inheritdoc IRegistry
    function revoke(bytes32 role) external {
        bytes32 nodeKey = _keys[msg.sender][role];
        if (nodeKey == 0) revert NotFound("no key is bound in this role");
        _useNonce(msg.sender);
        delete _keys[msg.sender][role];
        emit Revoked(msg.sender, role, nodeKey);
    }

    /// @inheritdoc IRegistry
    function keyOf(address wallet, bytes32 role) external view returns (bytes32) {
        return _keys[wallet][role];
    }

    /// @inheritdoc IRegistry
    function digest(address wallet, bytes32 nodeKey, bytes32 role, uint64 deadline)
        public
        view
        returns (bytes32)
    {
        bytes32 fields =
            keccak256(abi.encode(BIND_TYPE, wallet, nodeKey, role, nonces(wallet), deadline));
        return _hashTypedDataV4(fields);
    }

    function _bind(
        address wallet,
        bytes32 nodeKey,
        bytes32 role,
        uint64 deadline,
        bytes calldata nodeSignature
    ) private {
        if (nodeKey == 0) revert InvalidArgument("a key of zeros");
        if (nodeSignature.length != NODE_SIGNATURE_LENGTH) {
            revert InvalidArgument("an ed25519 signature has 64 bytes");
        }
        if (block.timestamp * 1_000 > deadline) revert WindowClosed(deadline);
        uint256 nonce = _useNonce(wallet);
        _keys[wallet][role] = nodeKey;
        emit Bound(wallet, role, nodeKey, nonce, deadline, nodeSignature);
    }
}
