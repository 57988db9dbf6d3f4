// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IMarketEvents} from "./IMarketEvents.sol";
import {IRefusals} from "./IRefusals.sol";
import {
    AtRisk,
    Claim,
    Posted,
    PostedSettlement,
    Settlement,
    Slash,
    Standing,
    TaskState,
    Terms
} from "./Types.sol";

/// @title The market: escrow, bonds, stakes, settlements and claims.
/// @notice Nobody owns it, nothing in it can be changed, and no function loops over participants. Moments are
/// milliseconds; the clock is the block's time in seconds, times 1,000, so that nothing ever comes early.
/// @dev Assumptions about the token. For *safety*: `balanceOf` tells the truth and only `transfer` and `transferFrom`
/// of the market's own making lower its balance. For *liveness*: a transfer to an honest account does not revert.
/// Tokens that charge a fee on transfer are refused where money comes in.
interface IMarket is IMarketEvents, IRefusals {
    // ------------------------------------------------------------------------------------------------ reading

    /// @notice The token that everything is counted in.
    function token() external view returns (IERC20);

    /// @notice The market's clock, by which deadlines and windows are judged.
    function clock() external view returns (uint64);

    /// @notice What everybody's debits and slashes have come to. Nobody can spend it.
    function treasury() external view returns (uint128);

    /// @notice A task's books; all zeros for a task never opened.
    function task(bytes32 id) external view returns (TaskState memory);

    /// @notice A bond; zero for one never made.
    function bondOf(bytes32 id, address account) external view returns (AtRisk memory);

    /// @notice A stake; zero for one never made.
    function stakeOf(address provider) external view returns (AtRisk memory);

    /// @notice Whether a provider has pledged its stake to a task.
    function pledged(bytes32 id, address provider) external view returns (bool);

    /// @notice The tasks that a provider's stake is pledged to: at most 256.
    function pledgesOf(address provider) external view returns (bytes32[] memory);

    /// @notice What a task has slashed from a provider's present pledge.
    function slashedOf(bytes32 id, address provider) external view returns (uint128);

    /// @notice What an account has been paid and debited in a task so far.
    function claimed(bytes32 id, address account)
        external
        view
        returns (uint128 paid, uint128 debited);

    /// @notice What a buyer signs to let somebody else open its task until `deadline`.
    function openTaskDigest(Terms calldata terms, uint64 deadline) external view returns (bytes32);

    // -------------------------------------------------------------------------------------------------- tasks

    /// @notice Locks a task's budget in escrow.
    /// @dev Effects: moves `data + infrastructure` from the buyer; emits `TaskOpened`.
    /// Requirements: the sender is the buyer (`NotAllowed`); the id is free (`TaskExists`); buyer and arbiter differ
    /// (`Meaningless`); `data` pays for a round (`TooSmall`); both delays are at most 30 days and the pools at most
    /// 2^96 - 1 (`Limit`); the buyer has the money (`Insufficient`) and has approved it; all of it arrives
    /// (`WrongArrival`).
    function openTask(Terms calldata terms) external;

    /// @notice Opens a task for a buyer that has signed its terms (EIP-712; a contract buyer by ERC-1271).
    /// @dev Effects: as `openTask`. Anybody may send it; a signature opens a task once, because an id is taken once.
    /// Requirements: as `openTask`, but instead of the sender the signature is the buyer's (`BadSignature`) and
    /// `deadline` has not passed (`WindowClosed`).
    function openTaskFor(Terms calldata terms, uint64 deadline, bytes calldata signature) external;

    /// @notice Closes a task and refunds what is still in escrow.
    /// @dev Effects: makes final what is due, pays the rest of both pools to the buyer, closes the task for ever; emits
    /// `SettlementFinalised` for each settlement and `TaskEnded`.
    /// Requirements: the task is there (`UnknownTask`) and open (`TaskClosed`); the sender is the coordinator, or the
    /// task has expired (`TooEarly`); `pending` are all settlements that are not final (`Stale`), and each window is
    /// over (`Pending`).
    /// @return refund what the buyer was given back.
    function close(bytes32 id, PostedSettlement[] calldata pending)
        external
        returns (uint128 refund);

    // -------------------------------------------------------------------------------------------- settlements

    /// @notice Posts a round's settlement. It becomes final after the challenge window.
    /// @dev Effects: moves `head`; emits `SettlementPosted`. Exactly the last standing settlement again is `Already`
    /// and does nothing. An earlier one again is refused with `BadSettlement`: its events say whether it is the same.
    /// Requirements: the task is there (`UnknownTask`); the sender is the coordinator (`NotAllowed`); `last` is the
    /// last settlement that stands (`Stale`), and is not another one of the same round (`ConflictingSettlement`); the
    /// task is open (`TaskClosed`); fewer than 64 are pending (`Limit`); the task has not expired, rounds begin with 1
    /// and ascend, totals neither shrink nor exceed the deposit, and are zero under an empty root (`BadSettlement`).
    function post(Settlement calldata settlement, Standing calldata last)
        external
        returns (Posted);

    /// @notice Writes down what `head` is now, so that a list up to it stays good for `cancel` and `finalize`: an
    /// arbiter that a coordinator disturbs by posting marks first and cancels then.
    /// @dev Effects: moves `mark` to `head`; emits `Marked`.
    /// Requirements: the task is there (`UnknownTask`); the sender is the arbiter (`NotAllowed`).
    function mark(bytes32 id) external;

    /// @notice Cancels a settlement, and every later one of the task, within its window.
    /// @dev Effects: moves `head` back to `before`; emits `SettlementsCancelled`.
    /// Requirements: the task is there (`UnknownTask`); the sender is the arbiter (`NotAllowed`); `from` names a
    /// settlement (`Missing`) and leads from `before` to `head` or `mark` (`Stale`); the first of `from` is not final
    /// and its window is open (`WindowClosed`).
    /// @param before what `head` was before the first settlement to go was posted.
    /// @param from the settlements to go, the first to go first.
    function cancel(bytes32 id, bytes32 before, PostedSettlement[] calldata from) external;

    /// @notice Makes final every settlement whose window is over; anybody may.
    /// @dev Effects: moves what they add to the totals from escrow to owed, moves `base` and the root; emits
    /// `SettlementFinalised` for each.
    /// Requirements: the task is there (`UnknownTask`); `pending` leads from `base` to `head` or `mark` (`Stale`).
    /// @return count how many there were; 0 is no refusal.
    function finalize(bytes32 id, PostedSettlement[] calldata pending)
        external
        returns (uint256 count);

    // ------------------------------------------------------------------------------------------------- claims

    /// @notice Pays an account what the final root says beyond what it has been paid, and takes from its bond what the
    /// root says beyond what it has been debited. Anybody may send it; the money goes to the account in the leaf.
    /// @dev Effects: pays `paid - claimed` to the account; moves `min(bond, debited - taken)` from its bond to the
    /// treasury; remembers both totals, also where the bond held less; emits `Claimed` where the pay grew and
    /// `Debited` where the debits grew.
    /// Requirements: the task is there (`UnknownTask`); the proof leads from the leaf to the final root (`BadProof`);
    /// neither total shrinks, debits are at most `debitMax` for each round, and the pay is at most what is owed
    /// (`BadSettlement`); something is left to claim (`NothingToClaim`).
    /// @param paid the running total of pay in the leaf.
    /// @param debited the running total of debits in the leaf.
    /// @return amount what was paid now.
    function claim(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited,
        bytes32[] calldata proof
    ) external returns (uint128 amount);

    /// @notice Many claims, each exactly as `claim`; if one is refused, all are.
    /// @dev Requirements: at most 256 (`Limit`).
    /// @return amounts what was paid now, in the order of the claims.
    function claimMany(Claim[] calldata items) external returns (uint128[] memory amounts);

    // -------------------------------------------------------------------------------------------------- bonds

    /// @notice Adds to the sender's bond in a task; cancels a running unbonding.
    /// @dev Effects: moves `amount` from the sender; emits `Bonded`.
    /// Requirements: the task is there (`UnknownTask`) and open (`TaskClosed`); the sender has the money
    /// (`Insufficient`) and has approved it; the bond will be at least `bondMin` (`TooSmall`); all of it arrives
    /// (`WrongArrival`).
    function bond(bytes32 id, uint128 amount) external;

    /// @notice Asks for the sender's bond back: it stays at risk for `unbondMs`. Asking again changes nothing.
    /// @dev Effects: sets the release; emits `Unbonding`.
    /// Requirements: the task is there (`UnknownTask`); there is a bond (`Missing`).
    function unbond(bytes32 id) external;

    /// @notice Returns the sender's bond.
    /// @dev Effects: moves the bond to the sender; emits `BondWithdrawn`.
    /// Requirements: the task is there (`UnknownTask`); there is a bond, asked back unless the task is closed
    /// (`Missing`); in an open task the moment is `max(release, min(lastPost, release) + 2 * challengeMs)`, or
    /// `release` if nothing was posted, and in a closed one `lastPost + 2 * challengeMs` (`TooEarly`): only
    /// settlements posted before the release can concern the bond, they are final one window later, and for another
    /// window anybody can prove a debit.
    /// @return amount what was returned.
    function withdrawBond(bytes32 id) external returns (uint128 amount);

    // ------------------------------------------------------------------------------------------------- stakes

    /// @notice Adds to the sender's stake; cancels a running unstaking.
    /// @dev Effects: moves `amount` from the sender; emits `Staked`.
    /// Requirements: more than zero (`Meaningless`); the sender has the money (`Insufficient`) and has approved it; all
    /// of it arrives (`WrongArrival`).
    function stake(uint128 amount) external;

    /// @notice Puts the sender's stake under a task's arbiter, up to `stakeMin`; cancels a running unstaking. Again:
    /// nothing happens.
    /// @dev Effects: ends pledges to closed tasks; emits `PledgeEnded` for those and `Pledged`.
    /// Requirements: the task is there (`UnknownTask`) and open (`TaskClosed`); the stake is at least `stakeMin`, and
    /// at least 1 (`TooSmall`); fewer than 256 open tasks have its pledge (`Limit`).
    function pledge(bytes32 id) external;

    /// @notice Asks for the sender's stake back; it stays at risk for the longest `unbondMs` of the open tasks that it
    /// is pledged to. Asking again changes nothing.
    /// @dev Effects: sets the release; emits `Unstaking`. Requirements: there is a stake (`Missing`).
    function unstake() external;

    /// @notice Returns the sender's stake; all its pledges end.
    /// @dev Effects: moves the stake to the sender; emits `StakeWithdrawn`.
    /// Requirements: there is a stake, and it was asked back (`Missing`); the delay is over (`TooEarly`).
    /// @return amount what was returned.
    function withdrawStake() external returns (uint128 amount);

    /// @notice Moves part of a bond or pledged stake to the treasury.
    /// @dev Effects: takes at most what is there, and in all at most `stakeMin` from one pledge, which then is used up;
    /// emits `Slashed`, and `PledgeEnded` for a pledge that is used up.
    /// Requirements: the task is there (`UnknownTask`); the sender is the arbiter (`NotAllowed`); the task is open
    /// (`TaskClosed`); more than zero (`Meaningless`); there is a bond or a pledge, and something left of it
    /// (`Missing`).
    /// @return taken what was taken.
    function slash(Slash calldata order) external returns (uint128 taken);
}
