// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

/// @title Why the market refuses. Each error is the refusal of the same name in the trait `Ledger`.
/// @notice A refusal changes nothing.
interface IRefusals {
    /// @notice Not enough in the wallet that pays.
    error Insufficient(address account, uint256 available, uint256 needed);
    /// @notice Signed by somebody else, for another market or chain, or not in canonical form.
    error BadSignature();
    /// @notice No such task.
    error UnknownTask(bytes32 task);
    /// @notice The id is taken.
    error TaskExists(bytes32 task);
    /// @notice It is over.
    error TaskClosed(bytes32 task);
    /// @notice The sender may not do this.
    error NotAllowed(address sender, address allowed);
    /// @notice A bond, a stake or a data pool below the smallest allowed.
    error TooSmall(uint256 offered, uint256 smallest);
    /// @notice Not before a certain moment.
    error TooEarly(uint64 moment, uint64 current);
    /// @notice The challenge window, or the time to use a signature, is over.
    error WindowClosed(uint64 moment);
    /// @notice Settlements wait for their window.
    error Pending(uint64 count);
    /// @notice Another settlement stands under this task and round.
    error ConflictingSettlement(bytes32 task, uint32 round);
    /// @notice Running totals that shrink, or exceed what was deposited, or a debit above its limit.
    error BadSettlement(uint32 round, string what);
    /// @notice The proof does not lead to the final root.
    error BadProof();
    /// @notice Everything was claimed before.
    error NothingToClaim();
    /// @notice No such bond, stake or settlement.
    error Missing(string what);
    /// @notice An amount of zero, or another argument without meaning.
    error Meaningless(string what);
    /// @notice A named limit.
    error Limit(string what);
    /// @notice What was passed along is not what stands: another transaction came first. Read the events again.
    error Stale(bytes32 head);
    /// @notice A token that delivers less, or more, than it was told to move.
    error WrongArrival(uint256 expected, uint256 arrived);
}
