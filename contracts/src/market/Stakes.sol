// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarket} from "../interfaces/IMarket.sol";
import {Collateral, SlashOrder} from "../interfaces/Types.sol";
import {Limits} from "./Limits.sol";
import {MarketStorage} from "./MarketStorage.sol";

/// @title Stakes: collateral of providers, its pledges to tasks, and slashing by an arbiter.
abstract contract Stakes is MarketStorage {
    /// @inheritdoc IMarket
    function stake(uint128 amount) external nonReentrant {
        if (amount == 0) revert InvalidArgument("a stake of 0");
        _requireBalance(msg.sender, amount);
        Stake storage stake_ = _stakes[msg.sender];
        stake_.amount += amount;
        stake_.release = 0;
        emit Staked(msg.sender, amount);
        _pullTokens(msg.sender, amount);
    }

    /// @inheritdoc IMarket
    function pledge(bytes32 id) external {
        Task storage task_ = _existingTask(id);
        if (task_.progress.closed) revert TaskClosed(id);
        Stake storage stake_ = _stakes[msg.sender];
        uint32 generation = stake_.generation;
        if (_pledges[msg.sender][generation][id].indexPlusOne != 0) return;
        // At least 1, even if the task requires no stake: pledges of an empty stake would be free
        // entries.
        uint128 smallest = task_.stakeMin == 0 ? 1 : task_.stakeMin;
        if (stake_.amount < smallest) revert TooSmall(stake_.amount, smallest);
        _endClosedPledges(msg.sender, generation);
        bytes32[] storage list = _pledged[msg.sender][generation];
        if (list.length >= Limits.PLEDGES_MAX) revert LimitExceeded("256 open tasks for one stake");
        list.push(id);
        _pledges[msg.sender][generation][id] = Pledge(0, uint32(list.length));
        // A pledge cancels a running unstaking, so that the new task's arbiter finds the stake.
        stake_.release = 0;
        emit Pledged(id, msg.sender);
    }

    /// @inheritdoc IMarket
    function unstake() external {
        Stake storage stake_ = _stakes[msg.sender];
        if (stake_.amount == 0) revert NotFound("no stake");
        if (stake_.release != 0) return;
        uint64 release = clock() + _longestDelay(_pledged[msg.sender][stake_.generation]);
        stake_.release = release;
        emit Unstaking(msg.sender, release);
    }

    /// @inheritdoc IMarket
    function withdrawStake() external nonReentrant returns (uint128 amount) {
        Stake storage stake_ = _stakes[msg.sender];
        amount = stake_.amount;
        if (amount == 0) revert NotFound("no stake");
        uint64 release = stake_.release;
        if (release == 0) revert NotFound("unstaking was not requested: call unstake first");
        uint64 current = clock();
        if (current < release) revert TooEarly(release, current);
        stake_.amount = 0;
        stake_.release = 0;
        // All pledges are void: a provider that stakes again must pledge again.
        stake_.generation += 1;
        emit StakeWithdrawn(msg.sender, amount);
        _send(msg.sender, amount);
    }

    /// @inheritdoc IMarket
    function slash(SlashOrder calldata order) external returns (uint128 taken) {
        Task storage task_ = _existingTask(order.task);
        address arbiter = task_.arbiter;
        if (msg.sender != arbiter) revert Unauthorized(msg.sender, arbiter);
        // The close ends the risk of slashes, except for the coordinator: its bond stands for the
        // pay that it posted until it is withdrawn.
        if (task_.progress.closed && (order.stake || !_coversPay(task_, order.account))) {
            revert TaskClosed(order.task);
        }
        if (order.amount == 0) revert InvalidArgument("a slash of 0");
        taken = order.stake
            ? _slashStake(order, task_.stakeMin)
            : _slashBond(order, task_);
        if (taken == 0) revert NotFound("nothing is left to slash");
        _toTreasury(taken);
        emit Slashed(order.task, order.account, order.stake, taken, order.evidence);
    }

    /// @inheritdoc IMarket
    function stakeOf(address provider) external view returns (Collateral memory) {
        Stake storage stake_ = _stakes[provider];
        return Collateral(stake_.amount, stake_.release);
    }

    /// @inheritdoc IMarket
    function pledged(bytes32 id, address provider) external view returns (bool) {
        return _pledges[provider][_stakes[provider].generation][id].indexPlusOne != 0;
    }

    /// @inheritdoc IMarket
    function pledgesOf(address provider) external view returns (bytes32[] memory) {
        return _pledged[provider][_stakes[provider].generation];
    }

    /// @inheritdoc IMarket
    function slashedOf(bytes32 id, address provider) external view returns (uint128) {
        return _pledges[provider][_stakes[provider].generation][id].slashed;
    }

    /// @inheritdoc IMarket
    function slashedBondOf(bytes32 id, address account) external view returns (uint128) {
        return _accounts[id][account].slashed;
    }

    function _slashBond(SlashOrder calldata order, Task storage task_)
        private
        returns (uint128 taken)
    {
        Account storage account_ = _accounts[order.task][order.account];
        Bond storage bond_ = account_.bond;
        taken = _min(order.amount, bond_.amount);
        if (!_coversPay(task_, order.account)) {
            uint128 slashed = account_.slashed;
            taken = _min(taken, task_.bondMin - slashed);
            account_.slashed = slashed + taken;
        }
        bond_.amount -= taken;
        _updateCover(task_, order.account, bond_);
    }

    function _slashStake(SlashOrder calldata order, uint128 stakeMin)
        private
        returns (uint128 taken)
    {
        Stake storage stake_ = _stakes[order.account];
        uint32 generation = stake_.generation;
        Pledge storage pledge_ = _pledges[order.account][generation][order.task];
        if (pledge_.indexPlusOne == 0) revert NotFound("no stake pledged to this task");
        taken = _min(_min(order.amount, stake_.amount), stakeMin - pledge_.slashed);
        stake_.amount -= taken;
        pledge_.slashed += taken;
        // A used-up pledge ends: to continue, the provider must pledge again with sufficient stake.
        if (pledge_.slashed == stakeMin) _endPledge(order.account, generation, order.task);
    }

    /// @dev Removes pledges to closed tasks, which no longer put the stake at risk. At most
    /// PLEDGES_MAX iterations.
    function _endClosedPledges(address provider, uint32 generation) private {
        bytes32[] storage list = _pledged[provider][generation];
        for (uint256 i = list.length; i > 0; --i) {
            bytes32 id = list[i - 1];
            if (_tasks[id].progress.closed) _endPledge(provider, generation, id);
        }
    }

    /// @dev The last pledge of the list moves to the free index.
    function _endPledge(address provider, uint32 generation, bytes32 id) private {
        bytes32[] storage list = _pledged[provider][generation];
        mapping(bytes32 => Pledge) storage pledges = _pledges[provider][generation];
        uint32 indexPlusOne = pledges[id].indexPlusOne;
        bytes32 last = list[list.length - 1];
        list[indexPlusOne - 1] = last;
        pledges[last].indexPlusOne = indexPlusOne;
        list.pop();
        delete pledges[id];
        emit PledgeEnded(id, provider);
    }

    /// @dev At most PLEDGES_MAX iterations.
    function _longestDelay(bytes32[] storage list) private view returns (uint64 longest) {
        uint256 length = list.length;
        for (uint256 i = 0; i < length; ++i) {
            Task storage task_ = _tasks[list[i]];
            if (!task_.progress.closed && task_.unbondMs > longest) longest = task_.unbondMs;
        }
    }

    function _min(uint128 a, uint128 b) private pure returns (uint128) {
        return a < b ? a : b;
    }
}
