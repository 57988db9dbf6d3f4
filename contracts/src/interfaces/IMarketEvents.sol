// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {MemberShare, Terms} from "./Types.sol";

/// @title Events of the market. A fold over them yields the market's complete state.
interface IMarketEvents {
    /// @notice A task was opened and its budget locked.
    event TaskOpened(bytes32 indexed task, address indexed buyer, Terms terms);
    /// @notice A task was closed and `refund` given back to its buyer.
    event TaskSettled(bytes32 indexed task, uint128 refund);
    /// @notice The coordinator announced that it will close the task: possible from `closesAt` on,
    /// unless a settlement is posted before or an account objects.
    event CloseAnnounced(bytes32 indexed task, uint64 closesAt);
    /// @notice An account objected to an announced close with the receipt of `sender` for `round`;
    /// `taken` went from the coordinator's bond to the treasury.
    event CloseObjected(
        bytes32 indexed task, address indexed sender, uint64 round, uint128 taken
    );

    /// @notice A settlement was posted, `challengeMs` before `finalAt`.
    event SettlementPosted(
        bytes32 indexed task,
        uint32 indexed round,
        bytes32 report,
        bytes32 root,
        uint128 dataTotal,
        uint128 scorePayTotal,
        uint128 infrastructureTotal,
        uint64 improvementTotalNano,
        uint64 finalAt
    );
    /// @notice The arbiter recorded the current `head`.
    event HeadCheckpointed(bytes32 indexed task, bytes32 head);
    /// @notice The settlement of `fromRound` and all later ones of the task were cancelled.
    event SettlementsCancelled(bytes32 indexed task, uint32 indexed fromRound);
    /// @notice A settlement is final: the increase of its totals is owed.
    event SettlementFinalised(bytes32 indexed task, uint32 indexed round);

    /// @notice The pay of `account` in the task is split among `members`.
    event SplitSet(bytes32 indexed task, address indexed account, MemberShare[] members);
    /// @notice `paid` is the running total paid to `account` in the task, or to the members of its
    /// split.
    event Claimed(bytes32 indexed task, address indexed account, uint128 paid);
    /// @notice `debited` is the running total debited from `account`; `taken` is the part that this
    /// call moved from its bond to the treasury.
    event Debited(bytes32 indexed task, address indexed account, uint128 debited, uint128 taken);

    /// @notice `amount` was added to a bond; a running unbonding is cancelled.
    event Bonded(bytes32 indexed task, address indexed account, uint128 amount);
    /// @notice Unbonding was requested.
    event Unbonding(bytes32 indexed task, address indexed account, uint64 release);
    /// @notice A bond was returned in full.
    event BondWithdrawn(bytes32 indexed task, address indexed account, uint128 amount);

    /// @notice `amount` was added to a stake; a running unstaking is cancelled.
    event Staked(address indexed provider, uint128 amount);
    /// @notice A stake was pledged to a task; a running unstaking is cancelled.
    event Pledged(bytes32 indexed task, address indexed provider);
    /// @notice A pledge is used up, or its task is closed.
    event PledgeEnded(bytes32 indexed task, address indexed provider);
    /// @notice Unstaking was requested.
    event Unstaking(address indexed provider, uint64 release);
    /// @notice A stake was returned in full; all of its pledges ended.
    event StakeWithdrawn(address indexed provider, uint128 amount);

    /// @notice `amount` was moved from a bond or a pledged stake to the treasury.
    event Slashed(
        bytes32 indexed task, address indexed account, bool stake, uint128 amount, bytes32 evidence
    );
}
