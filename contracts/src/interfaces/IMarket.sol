// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IMarketErrors} from "./IMarketErrors.sol";
import {IMarketEvents} from "./IMarketEvents.sol";
import {
    Claim,
    Collateral,
    LastSettlement,
    MemberShare,
    PostedSettlement,
    PostOutcome,
    Receipt,
    Settlement,
    SlashOrder,
    TaskState,
    Terms
} from "./Types.sol";

/// @title Market: escrow, bonds, stakes, settlements and claims.
/// @notice It has no owner, its code and token cannot be changed, and no function loops over
/// participants. Times are in milliseconds; the clock is the block's timestamp in seconds, times
/// 1,000, so that nothing happens early.
/// @dev Assumptions about the token. For *safety*: `balanceOf` is correct, and only the market's
/// own calls of `transfer` and `transferFrom` lower its balance. For *liveness*: a transfer to an
/// honest account does not revert. Deposits of a token that charges a fee on transfer are rejected.
interface IMarket is IMarketEvents, IMarketErrors {
    // --------------------------------------------------------------------------------------- views

    /// @notice The ERC-20 token of all amounts.
    function token() external view returns (IERC20);

    /// @notice The market's clock, which determines deadlines and windows.
    function clock() external view returns (uint64);

    /// @notice The sum of all debits and slashes. No function can spend it.
    function treasury() external view returns (uint128);

    /// @notice State of a task; all zeros for an unknown task.
    function task(bytes32 id) external view returns (TaskState memory);

    /// @notice The sum of both totals up to which the coordinator may post: what is final, and its
    /// bond unless that was requested back; at most 2^96 - 1, which is also the value for a
    /// coordinator that is the arbiter.
    function coveredOf(bytes32 id) external view returns (uint128);

    /// @notice A bond; zero if there is none.
    function bondOf(bytes32 id, address account) external view returns (Collateral memory);

    /// @notice A stake; zero if there is none.
    function stakeOf(address provider) external view returns (Collateral memory);

    /// @notice Whether a provider's stake is pledged to a task.
    function pledged(bytes32 id, address provider) external view returns (bool);

    /// @notice The tasks to which a provider's stake is pledged: at most 256.
    function pledgesOf(address provider) external view returns (bytes32[] memory);

    /// @notice The amount that a task has slashed from a provider's current pledge.
    function slashedOf(bytes32 id, address provider) external view returns (uint128);

    /// @notice The amount that a task has slashed from an account's bonds. The coordinator's bond has
    /// no limit, and is not counted.
    function slashedBondOf(bytes32 id, address account) external view returns (uint128);

    /// @notice The running totals that an account has claimed and been debited in a task.
    function claimed(bytes32 id, address account)
        external
        view
        returns (uint128 paid, uint128 debited);

    /// @notice The split of an account's pay in a task; empty if it has none.
    function splitOf(bytes32 id, address account) external view returns (MemberShare[] memory);

    /// @notice The EIP-712 digest that a buyer signs to let another account open its task until
    /// `deadline`.
    function openTaskDigest(Terms calldata terms, uint64 deadline) external view returns (bytes32);

    /// @notice The EIP-712 digest of a receipt that a coordinator signs, in a domain without a
    /// contract.
    function receiptDigest(Receipt calldata receipt) external view returns (bytes32);

    // --------------------------------------------------------------------------------------- tasks

    /// @notice Opens a task and locks its budget in escrow.
    /// @dev Effects: moves `data + infrastructure` from the buyer; emits `TaskOpened`.
    /// Requirements: the sender is the buyer (`Unauthorized`); the id is unused (`TaskExists`);
    /// the arbiter is neither the buyer nor the zero address, and the challenge window is not 0
    /// (`InvalidArgument`); `data` is at least the minimum (`TooSmall`); both delays are at most 30
    /// days, the expiry is at most 366 days from now, and the sum of the pools is at most 2^96 - 1
    /// (`LimitExceeded`);
    /// the buyer has the balance (`Insufficient`) and has approved it; the full amount arrives
    /// (`TransferAmountMismatch`).
    function openTask(Terms calldata terms) external;

    /// @notice Opens a task for a buyer that has signed its terms (EIP-712; a contract buyer by
    /// ERC-1271).
    /// @dev Effects: as `openTask`. Any account may send it. A signature opens a task only once,
    /// because a task id can be used only once.
    /// Requirements: as `openTask`, but instead of the sender the signature is the buyer's
    /// (`InvalidSignature`) and `deadline` has not passed (`WindowClosed`).
    function openTaskFor(Terms calldata terms, uint64 deadline, bytes calldata signature) external;

    /// @notice Closes a task and refunds the rest of its escrow.
    /// @dev Effects: finalises the due settlements, pays the rest of both pools to the buyer,
    /// closes the task permanently; emits `SettlementFinalised` for each settlement and
    /// `TaskSettled`.
    /// Requirements: the task exists (`UnknownTask`) and is open (`TaskClosed`); `pending` is the list
    /// of all settlements that are not final (`StaleHead`); the task has expired, or its close was
    /// announced and the time has come, or the sender is the coordinator and the last round is final,
    /// a settlement was cancelled, or it is the arbiter (`TooEarly`); the windows of all settlements
    /// are over (`SettlementsPending`).
    /// @return refund the amount refunded to the buyer.
    function close(bytes32 id, PostedSettlement[] calldata pending)
        external
        returns (uint128 refund);

    /// @notice Announces that the task will be closed before it expires, one challenge window from
    /// now.
    /// @dev Effects: sets `closesAt`; emits `CloseAnnounced`. A later post withdraws the announcement.
    /// A repeated call has no effect.
    /// Requirements: the task exists (`UnknownTask`); the sender is the coordinator (`Unauthorized`);
    /// the task is open (`TaskClosed`); all settlements are final (`SettlementsPending`).
    function announceClose(bytes32 id) external;

    /// @notice Objects to an announced close with the coordinator's receipt for an update of a round
    /// after the last final one.
    /// @dev Effects: withdraws the announcement, moves the coordinator's bond in the task to the
    /// treasury; emits `CloseObjected`.
    /// Requirements: the task exists (`UnknownTask`) and is open (`TaskClosed`); all settlements are
    /// final (`SettlementsPending`); a close is announced (`NotFound`); the round is later than the
    /// last final one (`InvalidArgument`); the signature of `receiptDigest` is the coordinator's, which
    /// may be a contract (`InvalidSignature`).
    /// @return taken the amount taken from the bond.
    function object(Receipt calldata receipt, bytes calldata signature)
        external
        returns (uint128 taken);

    // --------------------------------------------------------------------------------- settlements

    /// @notice Posts a round's settlement. It becomes final after the challenge window.
    /// @dev Effects: moves `head`; emits `SettlementPosted`. Repeating exactly the last active
    /// settlement returns `AlreadyPosted` and has no effect. Repeating an earlier one reverts with
    /// `InvalidSettlement`: its events show whether it is the same.
    /// Requirements: the task exists (`UnknownTask`); the sender is the coordinator
    /// (`Unauthorized`); `last` is the last active settlement (`StaleHead`), and not a different
    /// one of the same round (`ConflictingSettlement`); the task is open (`TaskClosed`); fewer than
    /// 64 settlements are pending (`LimitExceeded`); the task has not expired, rounds start with 1
    /// and ascend, totals neither decrease nor exceed the deposit, and are zero if the root is zero
    /// (`InvalidSettlement`); unless the coordinator is the arbiter, its bond covers the pay that
    /// is then posted and not final: both totals, minus those of the last final settlement
    /// (`TooSmall`). A bond that was requested back covers nothing.
    function post(Settlement calldata settlement, LastSettlement calldata last)
        external
        returns (PostOutcome);

    /// @notice Records the current `head`, so that a list up to it remains valid for `cancel` and
    /// `finalize`. An arbiter whose cancellation the coordinator obstructs by posting calls
    /// `checkpointHead` first and `cancel` next.
    /// @dev Effects: moves `checkpoint` to `head`; emits `HeadCheckpointed`.
    /// Requirements: the task exists (`UnknownTask`); the sender is the arbiter (`Unauthorized`).
    function checkpointHead(bytes32 id) external;

    /// @notice Cancels a settlement and all later ones of the task, within its challenge window.
    /// @dev Effects: moves `head` back to `before`; emits `SettlementsCancelled`.
    /// Requirements: the task exists (`UnknownTask`); the sender is the arbiter (`Unauthorized`);
    /// `from` is not empty (`NotFound`) and leads from `before` to `head` or `checkpoint`
    /// (`StaleHead`); the first of `from` is not final and its window is open (`WindowClosed`).
    /// @param before the value of `head` before the first cancelled settlement was posted.
    /// @param from the settlements to cancel, the oldest first.
    function cancel(bytes32 id, bytes32 before, PostedSettlement[] calldata from) external;

    /// @notice Finalises every settlement whose challenge window is over. Any account may call it.
    /// @dev Effects: moves the increase of the totals from escrow to owed, moves `finalHead` and
    /// the root; emits `SettlementFinalised` for each.
    /// Requirements: the task exists (`UnknownTask`); `pending` leads from `finalHead` to `head` or
    /// `checkpoint` (`StaleHead`).
    /// @return count the number of finalised settlements; 0 is not an error.
    function finalize(bytes32 id, PostedSettlement[] calldata pending)
        external
        returns (uint256 count);

    // -------------------------------------------------------------------------------------- claims

    /// @notice Pays an account the difference between the total of the final root and the total
    /// already paid, and debits its bond by the difference between the root's debits and those
    /// already applied. Any account may send it; the pay goes to the account in the leaf, or to the
    /// members of its split.
    /// @dev Effects: pays `paid - claimed` to the account, or to its members; moves `min(bond, debited - taken)` from
    /// its bond to the treasury; stores both totals, even if the bond was smaller; emits `Claimed`
    /// if the pay grew and `Debited` if the debits grew.
    /// Requirements: the task exists (`UnknownTask`); the proof leads from the leaf to the final
    /// root (`InvalidProof`); neither total decreases, debits are at most `debitMax` per final
    /// settlement, and the pay is at most what is owed (`InvalidSettlement`); there is something to
    /// claim (`NothingToClaim`).
    /// @param paid the running total of pay in the leaf.
    /// @param debited the running total of debits in the leaf.
    /// @return amount the amount paid by this call, to all members together.
    function claim(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited,
        bytes32[] calldata proof
    ) external returns (uint128 amount);

    /// @notice Several claims, each equivalent to `claim`; if one reverts, all do.
    /// @dev Requirements: at most 256 (`LimitExceeded`).
    /// @return amounts the amounts paid by this call, in the order of the claims.
    function claimMany(Claim[] calldata items) external returns (uint128[] memory amounts);

    // -------------------------------------------------------------------------------------- splits

    /// @notice Splits the sender's pay in a task among members, permanently. Unit `n` of the pay, from
    /// 0 on, belongs to the member in whose part of a turn of 1,000,000 units `n % 1,000,000` falls;
    /// the parts are the shares, one behind the other. Bonds and debits stay the sender's.
    /// @dev Effects: stores the members; emits `SplitSet`. Repeating the split has no effect.
    /// Requirements: the task exists (`UnknownTask`) and is open (`TaskClosed`); at most 64 members
    /// (`LimitExceeded`), in ascending order of distinct addresses, with shares above zero that add up
    /// to 1,000,000 (`SplitInvalid`); the sender has no other split in the task (`SplitFixed`), has no
    /// bond in it and has claimed nothing (`SplitTooLate`).
    function setSplit(bytes32 id, MemberShare[] calldata members) external;

    // --------------------------------------------------------------------------------------- bonds

    /// @notice Adds to the sender's bond in a task; cancels a running unbonding.
    /// @dev Effects: moves `amount` from the sender; emits `Bonded`.
    /// Requirements: the task exists (`UnknownTask`) and is open (`TaskClosed`); the sender has the
    /// balance (`Insufficient`) and has approved it; the resulting bond is at least `bondMin`,
    /// unless the sender is a coordinator that is not the arbiter (`TooSmall`); the full amount
    /// arrives (`TransferAmountMismatch`).
    function bond(bytes32 id, uint128 amount) external;

    /// @notice Requests the sender's bond back: it stays at risk for `unbondMs`. Idempotent.
    /// @dev Effects: sets the release; emits `Unbonding`.
    /// Requirements: the task exists (`UnknownTask`); there is a bond (`NotFound`).
    function unbond(bytes32 id) external;

    /// @notice Returns the sender's bond.
    /// @dev Effects: moves the bond to the sender; emits `BondWithdrawn`.
    /// Requirements: the task exists (`UnknownTask`); there is a bond, and unbonding was requested
    /// unless the task is closed (`NotFound`); the task is closed if the sender is a coordinator
    /// that is not the arbiter (`NotFound`); the earliest time has come (`TooEarly`): in an open
    /// task `max(release, min(lastPost, release) + 2 * challengeMs)`, or `release` if nothing was
    /// posted; in a closed task `lastPost + 2 * challengeMs`. Only settlements posted before the
    /// release can debit the bond; they are final one window later, and the second window is the
    /// time to prove a debit.
    /// @return amount the amount returned.
    function withdrawBond(bytes32 id) external returns (uint128 amount);

    // -------------------------------------------------------------------------------------- stakes

    /// @notice Adds to the sender's stake; cancels a running unstaking.
    /// @dev Effects: moves `amount` from the sender; emits `Staked`.
    /// Requirements: the amount is not zero (`InvalidArgument`); the sender has the balance
    /// (`Insufficient`) and has approved it; the full amount arrives (`TransferAmountMismatch`).
    function stake(uint128 amount) external;

    /// @notice Pledges the sender's stake to a task: the task's arbiter may slash up to `stakeMin`
    /// of it. Cancels a running unstaking. Idempotent.
    /// @dev Effects: ends pledges to closed tasks; emits `PledgeEnded` for those and `Pledged`.
    /// Requirements: the task exists (`UnknownTask`) and is open (`TaskClosed`); the stake is at
    /// least `stakeMin` and at least 1 (`TooSmall`); the stake is pledged to fewer than 256 open
    /// tasks (`LimitExceeded`).
    function pledge(bytes32 id) external;

    /// @notice Requests the sender's stake back; it stays at risk for the longest `unbondMs` of the
    /// open tasks to which it is pledged. Idempotent.
    /// @dev Effects: sets the release; emits `Unstaking`. Requirements: there is a stake
    /// (`NotFound`).
    function unstake() external;

    /// @notice Returns the sender's stake; all its pledges end.
    /// @dev Effects: moves the stake to the sender; emits `StakeWithdrawn`.
    /// Requirements: there is a stake, and unstaking was requested (`NotFound`); the delay is over
    /// (`TooEarly`).
    /// @return amount the amount returned.
    function withdrawStake() external returns (uint128 amount);

    /// @notice Slashes a bond or a pledged stake: moves part of it to the treasury.
    /// @dev Effects: takes at most the available amount, at most `stakeMin` in total from one
    /// pledge, which is then used up, and at most `bondMin` in total from the bonds of one account,
    /// unless they cover pay (of a coordinator that is not the arbiter); emits `Slashed`, and `PledgeEnded` for a pledge that is used
    /// up.
    /// Requirements: the task exists (`UnknownTask`); the sender is the arbiter (`Unauthorized`);
    /// the task is open, unless it is the bond of a coordinator that is not the arbiter
    /// (`TaskClosed`); the amount is not zero (`InvalidArgument`); there is a bond
    /// or a pledge with an amount left (`NotFound`).
    /// @return taken the amount slashed.
    function slash(SlashOrder calldata order) external returns (uint128 taken);
}
