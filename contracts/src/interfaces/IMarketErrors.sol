// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

/// @title Errors of the market. Each has the name of the corresponding error of the Rust trait
/// `Ledger`.
/// @notice A reverted call changes nothing.
interface IMarketErrors {
    /// @notice The paying wallet's balance is too small.
    error Insufficient(address account, uint256 available, uint256 needed);
    /// @notice Signed by another account, for another market or chain, or not in canonical form.
    error InvalidSignature();
    /// @notice The task does not exist.
    error UnknownTask(bytes32 task);
    /// @notice The task id is already used.
    error TaskExists(bytes32 task);
    /// @notice The task is closed.
    error TaskClosed(bytes32 task);
    /// @notice The sender is not authorised.
    error Unauthorized(address sender, address allowed);
    /// @notice A bond, a stake or a data pool is below its minimum, or the coordinator's bond is
    /// below the pay that a post would leave posted and not final.
    error TooSmall(uint256 offered, uint256 smallest);
    /// @notice The action is not allowed before `moment`.
    error TooEarly(uint64 moment, uint64 current);
    /// @notice The challenge window, or the deadline of a signature, has passed.
    error WindowClosed(uint64 moment);
    /// @notice Settlements are still within their challenge windows.
    error SettlementsPending(uint64 count);
    /// @notice A different settlement is active for this task and round.
    error ConflictingSettlement(bytes32 task, uint32 round);
    /// @notice Running totals decrease or exceed the deposit, or a debit exceeds its limit.
    error InvalidSettlement(uint32 round, string reason);
    /// @notice The proof does not lead to the final root.
    error InvalidProof();
    /// @notice Everything is already claimed.
    error NothingToClaim();
    /// @notice The bond, stake or settlement does not exist.
    error NotFound(string reason);
    /// @notice An amount of zero, or another invalid argument.
    error InvalidArgument(string reason);
    /// @notice A limit is exceeded.
    error LimitExceeded(string reason);
    /// @notice The list of members is not a split.
    error SplitInvalid(string reason);
    /// @notice The account has another split in the task, which stays.
    error SplitFixed(bytes32 task, address account);
    /// @notice The account has a bond in the task, or has claimed: a split is set before.
    error SplitTooLate(bytes32 task, address account);
    /// @notice The arguments do not match the current `head`: another transaction was included
    /// first. Read the events again.
    error StaleHead(bytes32 head);
    /// @notice The token transferred less, or more, than requested.
    error TransferAmountMismatch(uint256 expected, uint256 arrived);
}
