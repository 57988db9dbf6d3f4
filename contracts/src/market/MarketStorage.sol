// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ReentrancyGuardTransient} from
    "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {IMarket} from "../interfaces/IMarket.sol";
import {MemberShare} from "../interfaces/Types.sol";

/// @title Storage of the market, its clock, and the two functions that move tokens.
abstract contract MarketStorage is IMarket, ReentrancyGuardTransient {
    using SafeERC20 for IERC20;

    /// @dev One line per storage slot. A round accesses coordinator, deposits, progress and head; a
    /// claim accesses only claimable.
    struct Task {
        address coordinator; uint64 expires; uint32 challengeMs;
        address arbiter; uint32 unbondMs; bool cancelled;
        address buyer; uint64 closesAt;
        uint128 bondMin; uint128 debitMax;
        uint128 stakeMin; uint128 refunded;
        uint96 data; uint96 infrastructure; uint32 rounds; uint32 floorShare;
        Progress progress;
        Claimable claimable;
        uint96 dataPaid; uint96 infrastructurePaid; uint32 round; uint32 finalised;
        bytes32 head;
        bytes32 finalHead;
        bytes32 checkpoint;
        bytes32 root;
    }

    /// @dev One slot, which a post reads and writes in any case. `pending` and `checkpointed` count
    /// the settlements after `finalHead`, up to `head` and up to `checkpoint`: at most PENDING_MAX.
    /// `lastPost` is in seconds, as the clock's source. `perNatMax` is a term. `covered` is the
    /// total up to which the coordinator may post: what is final, plus its bond; see `_updateCover`.
    struct Progress {
        uint8 pending;
        uint8 checkpointed;
        bool closed;
        uint40 lastPost;
        uint96 perNatMax;
        uint96 covered;
    }

    /// @dev The state that a claim needs, in one slot; this saves 2,100 gas per claim. `tag` is the
    /// first 20 bytes of the final root: a second tree with the same tag takes 2^160 hashes for a
    /// third party and 2^80 for the coordinator itself, as for an address.
    struct Claimable {
        uint96 owed;
        bytes20 tag;
    }

    /// @dev One slot, so that a claim knows without another read that an account has no split.
    /// `members` is the length of its split. No account is paid more than was owed, 2^96 - 1.
    struct ClaimedTotals {
        uint96 paid;
        uint128 debited;
        uint32 members;
    }

    struct Bond {
        uint128 amount;
        uint64 release;
    }

    struct Account {
        ClaimedTotals claimed;
        Bond bond;
        /// Slashed from its bonds in the task so far: at most `bondMin`, except of the coordinator.
        uint128 slashed;
        /// The split of its pay: `claimed.members` entries.
        mapping(uint256 index => MemberShare) split;
    }

    /// @dev `generation` counts the withdrawals of the stake: pledges of an earlier generation are
    /// void.
    struct Stake {
        uint128 amount;
        uint64 release;
        uint32 generation;
    }

    /// @dev `indexPlusOne` is the index of the pledge in its list, plus one; 0 for no pledge.
    struct Pledge {
        uint128 slashed;
        uint32 indexPlusOne;
    }

    /// @inheritdoc IMarket
    IERC20 public immutable token;

    /// @inheritdoc IMarket
    uint128 public treasury;

    mapping(bytes32 task => Task) internal _tasks;
    mapping(bytes32 task => mapping(address account => Account)) internal _accounts;
    mapping(address provider => Stake) internal _stakes;
    mapping(address provider => mapping(uint32 generation => bytes32[])) internal _pledged;
    mapping(address provider => mapping(uint32 generation => mapping(bytes32 task => Pledge)))
        internal _pledges;

    constructor(IERC20 token_) {
        token = token_;
    }

    /// @inheritdoc IMarket
    function clock() public view returns (uint64) {
        // Fits for 584 million years.
        return uint64(block.timestamp * 1_000);
    }

    function _existingTask(bytes32 id) internal view returns (Task storage task_) {
        task_ = _tasks[id];
        // The head of an opened task is never zero: its history starts with a hash.
        if (task_.head == 0) revert UnknownTask(id);
    }

    /// @dev Whether the bond of an account covers pay: it is the coordinator's, and another account,
    /// the arbiter, can slash it.
    function _coversPay(Task storage task_, address account) internal view returns (bool) {
        return account == task_.coordinator && account != task_.arbiter;
    }

    /// @dev Must follow every change of a bond. A bond that was requested back covers nothing. The
    /// totals of a task are at most 2^96 - 1, so that a larger sum is no different.
    function _updateCover(Task storage task_, address account, Bond storage bond_) internal {
        if (!_coversPay(task_, account)) return;
        uint256 covered = uint256(task_.dataPaid) + task_.infrastructurePaid;
        if (bond_.release == 0) covered += bond_.amount;
        task_.progress.covered =
            covered < type(uint96).max ? uint96(covered) : type(uint96).max;
    }

    /// @dev Transfers `amount` from `from` and checks the received amount: a token that charges a
    /// fee on transfer is rejected.
    function _pullTokens(address from, uint256 amount) internal {
        if (amount == 0) return;
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(from, address(this), amount);
        uint256 arrived = token.balanceOf(address(this)) - before;
        if (arrived != amount) revert TransferAmountMismatch(amount, arrived);
    }

    function _requireBalance(address account, uint256 needed) internal view {
        uint256 available = token.balanceOf(account);
        if (available < needed) revert Insufficient(account, available, needed);
    }

    /// @dev Must be the last action of a function (checks-effects-interactions).
    function _send(address to, uint256 amount) internal {
        if (amount != 0) token.safeTransfer(to, amount);
    }

    function _toTreasury(uint128 amount) internal {
        treasury += amount;
    }
}
