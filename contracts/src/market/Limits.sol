// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

/// @title Every limit of the market, by name. What goes beyond one is refused with `Limit`.
/// @dev The numbers are those of the embedded chain, except where a line says otherwise.
library Limits {
    /// @notice Longest challenge window and longest unbonding delay, in milliseconds: 30 days.
    uint64 internal constant DELAY_MS_MAX = 30 * 24 * 3_600 * 1_000;
    /// @notice Smallest data pool, in base units: less would not pay for one round.
    uint128 internal constant DATA_MIN = 1e15;
    /// @notice Both pools of a task together. The embedded chain's limit is the supply; here what a task owes shares
    /// a storage slot with its root.
    uint256 internal constant DEPOSIT_MAX = type(uint96).max;
    /// @notice Settlements of one task that may wait for their windows at the same time.
    uint256 internal constant PENDING_MAX = 64;
    /// @notice Open tasks to which one provider may have pledged its stake.
    uint256 internal constant PLEDGES_MAX = 256;
    /// @notice Sibling hashes in one proof.
    uint256 internal constant PROOF_LENGTH_MAX = 64;
    /// @notice Claims in one call.
    uint256 internal constant CLAIMS_MAX = 256;
}
