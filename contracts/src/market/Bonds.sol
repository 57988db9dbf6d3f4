// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarket} from "../interfaces/IMarket.sol";
import {Collateral} from "../interfaces/Types.sol";
import {MarketStorage} from "./MarketStorage.sol";

/// @title Bonds: collateral of participants and of the coordinator in a task, and its withdrawal.
abstract contract Bonds is MarketStorage {
    /// @inheritdoc IMarket
    function bond(bytes32 id, uint128 amount) external nonReentrant {
        Task storage task_ = _existingTask(id);
        if (task_.progress.closed) revert TaskClosed(id);
        _requireBalance(msg.sender, amount);
        Bond storage bond_ = _accounts[id][msg.sender].bond;
        uint256 offered = uint256(bond_.amount) + amount;
        // The minimum is that of participants: the coordinator deposits as much as its posts need.
        if (offered < task_.bondMin && !_coversPay(task_, msg.sender)) {
            revert TooSmall(offered, task_.bondMin);
        }
        if (offered > type(uint128).max) revert LimitExceeded("a bond: 2^128 - 1");
        bond_.amount = uint128(offered);
        bond_.release = 0;
        _updateCover(task_, msg.sender, bond_);
        emit Bonded(id, msg.sender, amount);
        _pullTokens(msg.sender, amount);
    }

    /// @inheritdoc IMarket
    function unbond(bytes32 id) external {
        Task storage task_ = _existingTask(id);
        Bond storage bond_ = _accounts[id][msg.sender].bond;
        if (bond_.amount == 0) revert NotFound("no bond");
        if (bond_.release != 0) return;
        uint64 release = clock() + task_.unbondMs;
        bond_.release = release;
        _updateCover(task_, msg.sender, bond_);
        emit Unbonding(id, msg.sender, release);
    }

    /// @inheritdoc IMarket
    function withdrawBond(bytes32 id) external nonReentrant returns (uint128 amount) {
        Task storage task_ = _existingTask(id);
        Bond storage bond_ = _accounts[id][msg.sender].bond;
        amount = bond_.amount;
        if (amount == 0) revert NotFound("no bond");
        if (!task_.progress.closed && _coversPay(task_, msg.sender)) {
            revert NotFound("the task is open: the coordinator's bond returns after the close");
        }
        uint64 moment = _withdrawable(task_, bond_.release);
        uint64 current = clock();
        if (current < moment) revert TooEarly(moment, current);
        delete _accounts[id][msg.sender].bond;
        emit BondWithdrawn(id, msg.sender, amount);
        _send(msg.sender, amount);
    }

    /// @inheritdoc IMarket
    function bondOf(bytes32 id, address account) external view returns (Collateral memory) {
        Bond storage bond_ = _accounts[id][account].bond;
        return Collateral(bond_.amount, bond_.release);
    }

    /// @dev Only settlements posted before the release can debit a bond. They are final one window
    /// later; the second window is the time to prove a debit. A coordinator cannot delay the
    /// withdrawal by posting more settlements.
    function _withdrawable(Task storage task_, uint64 release) private view returns (uint64) {
        uint64 posted = uint64(task_.progress.lastPost) * 1_000;
        uint64 windows = 2 * uint64(task_.challengeMs);
        if (task_.progress.closed) return posted == 0 ? 0 : posted + windows;
        if (release == 0) revert NotFound("unbonding was not requested: call unbond first");
        if (posted == 0) return release;
        uint64 proven = (posted < release ? posted : release) + windows;
        return proven > release ? proven : release;
    }
}
