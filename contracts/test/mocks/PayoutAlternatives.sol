// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";

/// @title Alternative payout designs for the gas table, without challenge windows, escrow or
/// separation of the tasks' funds.

/// @notice One root of running totals, replaced in each round.
contract BareRunningTotals {
    using SafeERC20 for IERC20;

    IERC20 private immutable _token;
    bytes32 private _root;
    mapping(address => uint256) private _claimed;

    event Claimed(address indexed account, uint256 total);

    constructor(IERC20 token) {
        _token = token;
    }

    function post(bytes32 root) external {
        _root = root;
    }

    function claim(address account, uint256 total, bytes32[] calldata proof) external {
        bytes32 leaf = keccak256(bytes.concat(keccak256(abi.encode(account, total))));
        require(MerkleProof.processProofCalldata(proof, leaf) == _root, "proof");
        uint256 before = _claimed[account];
        _claimed[account] = total;
        emit Claimed(account, total);
        _token.safeTransfer(account, total - before);
    }
}

/// @notice One root and one claim per round; a bitmap records the claims.
contract OneShot {
    using SafeERC20 for IERC20;

    IERC20 private immutable _token;
    bytes32 private immutable _root;
    mapping(uint256 => uint256) private _claimed;

    event Claimed(uint256 index, address account, uint256 amount);

    constructor(IERC20 token, bytes32 root) {
        (_token, _root) = (token, root);
    }

    function claim(uint256 index, address account, uint256 amount, bytes32[] calldata proof)
        external
    {
        bytes32 leaf = keccak256(bytes.concat(keccak256(abi.encode(index, account, amount))));
        require(MerkleProof.processProofCalldata(proof, leaf) == _root, "proof");
        uint256 bit = 1 << (index % 256);
        require(_claimed[index / 256] & bit == 0, "claimed");
        _claimed[index / 256] |= bit;
        emit Claimed(index, account, amount);
        _token.safeTransfer(account, amount);
    }
}

/// @notice Transfers the pay of every account in a loop.
contract Loop {
    using SafeERC20 for IERC20;

    IERC20 private immutable _token;

    constructor(IERC20 token) {
        _token = token;
    }

    function pay(address[] calldata accounts, uint256[] calldata amounts) external {
        for (uint256 i = 0; i < accounts.length; ++i) {
            _token.safeTransfer(accounts[i], amounts[i]);
        }
    }
}
