// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

/// @title Limits of the market. Exceeding one reverts with `LimitExceeded`.
/// @dev The values are those of the embedded chain, unless a comment states a difference.
library Limits {
    /// @notice Longest challenge window and longest unbonding delay, in milliseconds: 30 days.
    uint64 internal constant DELAY_MS_MAX = 30 * 24 * 3_600 * 1_000;
    /// @notice Longest time from the opening of a task to its expiry, in milliseconds: 366 days.
    uint64 internal constant TASK_MS_MAX = 366 * 24 * 3_600 * 1_000;
    /// @notice Smallest data pool, in base units: a smaller one cannot pay for a round.
    uint128 internal constant DATA_MIN = 1e15;
    /// @notice Largest sum of a task's two pools. The embedded chain's limit is the supply; here
    /// the owed amount shares a storage slot with the root's tag.
    uint256 internal constant DEPOSIT_MAX = type(uint96).max;
    /// @notice Largest floor share: all of the data pool, in millionths.
    uint32 internal constant FLOOR_SHARE_MAX = 1_000_000;
    /// @notice Largest price of a nat. The embedded chain's limit is 2^128 - 1; here it shares a
    /// storage slot with the counts of settlements.
    uint256 internal constant PER_NAT_MAX = type(uint96).max;
    /// @notice Settlements of one task that may be pending at the same time.
    uint256 internal constant PENDING_MAX = 64;
    /// @notice Open tasks to which one provider's stake may be pledged.
    uint256 internal constant PLEDGES_MAX = 256;
    /// @notice Sibling hashes in a proof.
    uint256 internal constant PROOF_LENGTH_MAX = 64;
    /// @notice Members of a split, each of which a claim pays.
    uint256 internal constant SPLIT_MEMBERS_MAX = 64;
    /// @notice Units of one turn in which a split deals the pay, and the sum of its shares.
    uint256 internal constant SPLIT_TURN = 1_000_000;
    /// @notice Claims in one call.
    uint256 internal constant CLAIMS_MAX = 256;
}
