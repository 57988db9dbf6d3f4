// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {Terms} from "./Types.sol";

/// @title What has happened, in full: folding these events gives all of the market's state.
interface IMarketEvents {
    /// @notice A task was opened and its budget locked.
    event TaskOpened(bytes32 indexed task, address indexed buyer, Terms terms);
    /// @notice A task was closed and `refund` given back to its buyer.
    event TaskEnded(bytes32 indexed task, uint128 refund);

    /// @notice A settlement stands. It was posted `challengeMs` before `finalAt`.
    event SettlementPosted(
        bytes32 indexed task,
        uint32 indexed round,
        bytes32 report,
        bytes32 root,
        uint128 dataTotal,
        uint128 infrastructureTotal,
        uint64 finalAt
    );
    /// @notice The arbiter has written down what `head` is.
    event Marked(bytes32 indexed task, bytes32 head);
    /// @notice The settlement of `fromRound` and every later one of the task are gone.
    event SettlementsCancelled(bytes32 indexed task, uint32 indexed fromRound);
    /// @notice A settlement is final: what it added to the totals is owed.
    event SettlementFinalised(bytes32 indexed task, uint32 indexed round);

    /// @notice `paid` is everything that `account` has been paid in the task so far.
    event Claimed(bytes32 indexed task, address indexed account, uint128 paid);
    /// @notice `debited` is everything that `account` has been debited so far; `taken` went from its bond to the
    /// treasury this time.
    event Debited(bytes32 indexed task, address indexed account, uint128 debited, uint128 taken);

    /// @notice `amount` was added to a bond; it is not asked back any more.
    event Bonded(bytes32 indexed task, address indexed account, uint128 amount);
    /// @notice A bond was asked back.
    event Unbonding(bytes32 indexed task, address indexed account, uint64 release);
    /// @notice A bond was returned in full.
    event BondWithdrawn(bytes32 indexed task, address indexed account, uint128 amount);

    /// @notice `amount` was added to a stake; it is not asked back any more.
    event Staked(address indexed provider, uint128 amount);
    /// @notice A stake was put under a task's arbiter; it is not asked back any more.
    event Pledged(bytes32 indexed task, address indexed provider);
    /// @notice A pledge is used up, or its task was found closed.
    event PledgeEnded(bytes32 indexed task, address indexed provider);
    /// @notice A stake was asked back.
    event Unstaking(address indexed provider, uint64 release);
    /// @notice A stake was returned in full; all of its pledges ended.
    event StakeWithdrawn(address indexed provider, uint128 amount);

    /// @notice `amount` went from a bond or a pledged stake to the treasury.
    event Slashed(
        bytes32 indexed task, address indexed account, bool stake, uint128 amount, bytes32 evidence
    );
}
