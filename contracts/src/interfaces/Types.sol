// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

// The words of the market. Amounts are base units, moments milliseconds since 1970, as in the trait `Ledger`.

/// @notice What the market needs to know of a task. It cannot be changed.
struct Terms {
    /// The task's id: the digest of its specification.
    bytes32 task;
    /// Who funds it, and has the rest refunded.
    address buyer;
    /// Who posts settlements.
    address coordinator;
    /// Who may cancel a settlement within its window, and slash.
    address arbiter;
    /// Locked for data.
    uint128 data;
    /// Locked for infrastructure services.
    uint128 infrastructure;
    /// Smallest bond.
    uint128 bondMin;
    /// Most that one round may debit from one bond.
    uint128 debitMax;
    /// Smallest stake of a provider that serves the task, and the most that may be slashed from it here.
    uint128 stakeMin;
    /// How long a settlement can be challenged.
    uint64 challengeMs;
    /// How long a bond stays at risk after its owner asks for it back.
    uint64 unbondMs;
    /// After this moment anybody may close the task.
    uint64 expires;
}

/// @notice One round's settlement as the coordinator posts it. Totals are running totals over the task. What it
/// continues is told by a `Standing`, which names the previous root and all that came before.
struct Settlement {
    /// The task.
    bytes32 task;
    /// The round; with the task it names the settlement.
    uint32 round;
    /// Digest of the round's report.
    bytes32 report;
    /// Root of the tree of running totals.
    bytes32 root;
    /// Paid for data in the task so far, this round included.
    uint128 dataTotal;
    /// Paid for infrastructure in the task so far, this round included.
    uint128 infrastructureTotal;
}

/// @notice The last settlement that stands, as much of it as a new one is measured against. All zeros in a task
/// without one.
struct Standing {
    /// Hash of what came before it, its report and its moment: see `History.inner`.
    bytes32 inner;
    /// Its round.
    uint32 round;
    /// Its root.
    bytes32 root;
    /// Its data total.
    uint128 dataTotal;
    /// Its infrastructure total.
    uint128 infrastructureTotal;
}

/// @notice A settlement that was posted, as its event `SettlementPosted` tells it.
struct PostedSettlement {
    /// The round.
    uint32 round;
    /// Digest of the round's report.
    bytes32 report;
    /// Root of the tree of running totals.
    bytes32 root;
    /// Data total.
    uint128 dataTotal;
    /// Infrastructure total.
    uint128 infrastructureTotal;
    /// Final after this moment.
    uint64 finalAt;
}

/// @notice A claim of everything that one account is owed in one task, and a proof of everything that it owes.
struct Claim {
    /// The task.
    bytes32 task;
    /// Who is paid, whoever sends the claim.
    address account;
    /// Running total of pay in the final root.
    uint256 paid;
    /// Running total of debits in the final root.
    uint256 debited;
    /// Sibling hashes to the root.
    bytes32[] proof;
}

/// @notice What an arbiter takes from a bond or a pledged stake, and why.
struct Slash {
    /// The task under whose rules it happens.
    bytes32 task;
    /// Who loses it.
    address account;
    /// True for a provider's stake, false for a participant's bond.
    bool stake;
    /// How much; at most what is there (for a stake: at most the task's `stakeMin` in all).
    uint128 amount;
    /// Digest of the evidence, for whoever wants to check it.
    bytes32 evidence;
}

/// @notice A task's books. Its settlements that are not final yet are in the events; `head` commits to them.
struct TaskState {
    /// What it was opened with.
    Terms terms;
    /// Still in escrow for data.
    uint128 dataLocked;
    /// Still in escrow for infrastructure.
    uint128 infrastructureLocked;
    /// Made final for data so far, claimed or not.
    uint128 dataPaid;
    /// Made final for infrastructure so far, claimed or not.
    uint128 infrastructurePaid;
    /// Given back to the buyer.
    uint128 refunded;
    /// Final but not claimed yet.
    uint128 owed;
    /// Root of the last final settlement; zeros before the first.
    bytes32 root;
    /// Round of the last final settlement; 0 before the first.
    uint32 round;
    /// How many settlements are not final yet.
    uint32 pending;
    /// When the latest settlement was posted; 0 before the first.
    uint64 lastPost;
    /// Closed for ever.
    bool closed;
    /// Commits to every settlement that stands, up to the last.
    bytes32 head;
    /// Commits to every settlement up to the last final one.
    bytes32 base;
    /// What `head` was when the arbiter wrote it down, or `base`: see `History`.
    bytes32 mark;
}

/// @notice A bond or a stake.
struct AtRisk {
    /// At risk now.
    uint128 amount;
    /// When it can be withdrawn at the earliest, if its owner has asked for it back; else 0.
    uint64 release;
}

/// @notice What posting a settlement came to.
enum Posted {
    /// It stands now.
    New,
    /// Exactly this settlement is the last that stands: nothing happened.
    Already
}
