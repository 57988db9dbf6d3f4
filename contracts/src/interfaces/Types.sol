// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

// Data types of the market. Amounts are in base units, times in milliseconds since 1970, as in the
// Rust trait `Ledger`.

/// @notice The terms of a task that the market enforces. They cannot be changed.
struct Terms {
    /// The task's id: the digest of its specification.
    bytes32 task;
    /// The buyer: funds the task and receives the refund.
    address buyer;
    /// The coordinator: posts settlements.
    address coordinator;
    /// The arbiter: may cancel a settlement within its challenge window, and slash.
    address arbiter;
    /// Budget for data.
    uint128 data;
    /// Budget for infrastructure.
    uint128 infrastructure;
    /// Number of rounds: after round r at most r / rounds of each budget may be paid.
    uint32 rounds;
    /// Largest pay for scores per nat of improvement, at most 2^96 - 1.
    uint128 perNatMax;
    /// Share of the data budget that may be paid without improvement, in millionths; it grows with
    /// the rounds as the budget does.
    uint32 floorShare;
    /// Minimum bond of a participant, and the most that the arbiter may slash from its bonds.
    uint128 bondMin;
    /// Largest debit from one bond per final settlement.
    uint128 debitMax;
    /// Minimum stake of a provider of the task, and the most that the task may slash from it.
    uint128 stakeMin;
    /// Challenge window of a settlement.
    uint64 challengeMs;
    /// Unbonding delay: how long a bond stays at risk after its owner requests it back.
    uint64 unbondMs;
    /// After this time any account may close the task.
    uint64 expires;
}

/// @notice One round's settlement as the coordinator posts it. Totals are running totals of the
/// task. A `LastSettlement` names the settlement that it follows.
struct Settlement {
    /// The task.
    bytes32 task;
    /// The round; task and round identify the settlement.
    uint32 round;
    /// Digest of the round's report.
    bytes32 report;
    /// Root of the Merkle tree of running totals.
    bytes32 root;
    /// Total paid for data in the task, including this round.
    uint128 dataTotal;
    /// The part of `dataTotal` that was paid for scores; the rest is floor.
    uint128 scorePayTotal;
    /// Total paid for infrastructure in the task, including this round.
    uint128 infrastructureTotal;
    /// Improvement of the task's model in nano-nats, including this round.
    uint64 improvementTotalNano;
}

/// @notice The last active settlement: the part with which a new one is compared. All zeros in a
/// task without settlements.
struct LastSettlement {
    /// Hash of the preceding history and of the parts that are not compared: see
    /// `SettlementChain.innerHash`.
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

/// @notice A posted settlement, as in its event `SettlementPosted`.
struct PostedSettlement {
    /// The round.
    uint32 round;
    /// Digest of the round's report.
    bytes32 report;
    /// Root of the Merkle tree of running totals.
    bytes32 root;
    /// Data total.
    uint128 dataTotal;
    /// Score pay in it.
    uint128 scorePayTotal;
    /// Infrastructure total.
    uint128 infrastructureTotal;
    /// Improvement in nano-nats.
    uint64 improvementTotalNano;
    /// The settlement is final after this time.
    uint64 finalAt;
}

/// @notice A claim: pays everything owed to one account in one task, and applies all its debits.
struct Claim {
    /// The task.
    bytes32 task;
    /// The account that is paid, independent of the sender of the claim.
    address account;
    /// Running total of pay in the final root.
    uint256 paid;
    /// Running total of debits in the final root.
    uint256 debited;
    /// Sibling hashes from the leaf to the root.
    bytes32[] proof;
}

/// @notice A member of a split: of the pay of an account in a task.
struct MemberShare {
    /// The account that is paid.
    address member;
    /// Its share, in millionths.
    uint32 share;
}

/// @notice An arbiter's order to slash a bond or a pledged stake.
struct SlashOrder {
    /// The task under whose rules it is slashed.
    bytes32 task;
    /// The owner of the bond or stake.
    address account;
    /// True for a provider's stake, false for a participant's bond.
    bool stake;
    /// The amount; capped by the available amount (for a stake: by the task's `stakeMin` in total).
    uint128 amount;
    /// Digest of the evidence, for verification off chain.
    bytes32 evidence;
}

/// @notice A coordinator's receipt for an update: the part that its wallet signs.
struct Receipt {
    /// The task.
    bytes32 task;
    /// The round.
    uint64 round;
    /// The sender of the update.
    address sender;
    /// Digest of the update's header.
    bytes32 update;
}

/// @notice State of a task. Its pending settlements are in the events; `head` commits to them.
struct TaskState {
    /// The terms of the task.
    Terms terms;
    /// Still in escrow for data.
    uint128 dataLocked;
    /// Still in escrow for infrastructure.
    uint128 infrastructureLocked;
    /// Finalised for data so far, claimed or not.
    uint128 dataPaid;
    /// Finalised for infrastructure so far, claimed or not.
    uint128 infrastructurePaid;
    /// Refunded to the buyer.
    uint128 refunded;
    /// Finalised but not claimed yet.
    uint128 owed;
    /// Root of the last final settlement; zeros before the first.
    bytes32 root;
    /// Round of the last final settlement; 0 before the first.
    uint32 round;
    /// Number of final settlements.
    uint32 finalised;
    /// Number of pending settlements.
    uint32 pending;
    /// Time at which the latest settlement was posted; 0 before the first.
    uint64 lastPost;
    /// Any account may close the task from this time on, because its coordinator announced it; 0
    /// without an announcement.
    uint64 closesAt;
    /// Whether the task is closed.
    bool closed;
    /// Commits to every active settlement.
    bytes32 head;
    /// Commits to every settlement up to the last final one.
    bytes32 finalHead;
    /// The value of `head` that the arbiter recorded, or `finalHead`: see `SettlementChain`.
    bytes32 checkpoint;
}

/// @notice Collateral: a bond or a stake.
struct Collateral {
    /// The amount at risk.
    uint128 amount;
    /// The earliest time of withdrawal, if its owner has requested it back; otherwise 0.
    uint64 release;
}

/// @notice Result of posting a settlement.
enum PostOutcome {
    /// It was posted.
    Posted,
    /// It equals the last active settlement: no effect.
    AlreadyPosted
}
