// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ReentrancyGuardTransient} from
    "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {IMarket} from "../interfaces/IMarket.sol";

/// @title What the market stores, its clock, and the two doors through which money comes and goes.
abstract contract Books is IMarket, ReentrancyGuardTransient {
    using SafeERC20 for IERC20;

    /// @dev One line for each storage slot. A round touches coordinator, deposits, progress and head; a claim touches
    /// claimable alone.
    struct Task {
        address coordinator; uint64 expires; uint32 challengeMs;
        address arbiter; uint32 unbondMs;
        address buyer;
        uint128 data; uint128 infrastructure;
        uint128 bondMin; uint128 debitMax;
        uint128 stakeMin; uint128 refunded;
        Progress progress;
        Claimable claimable;
        uint128 dataPaid; uint128 infrastructurePaid;
        bytes32 head;
        bytes32 base;
        bytes32 mark;
        bytes32 root;
    }

    /// @dev `posted`, `finalised` and `marked` count the settlements up to `head`, `base` and `mark`.
    struct Progress {
        uint32 posted;
        uint32 finalised;
        uint32 marked;
        uint48 lastPost;
        uint32 round;
        bool closed;
    }

    /// @dev What a claim needs, in one slot: 2,100 gas less for everybody who claims. `tag` is the first 20 bytes of
    /// the final root: a second tree under it takes 2^160 hashes for a stranger and 2^80 for the coordinator itself,
    /// as for an address.
    struct Claimable {
        uint96 owed;
        bytes20 tag;
    }

    struct Taken {
        uint128 paid;
        uint128 debited;
    }

    struct Bond {
        uint128 amount;
        uint64 release;
    }

    struct Account {
        Taken taken;
        Bond bond;
    }

    /// @dev `generation` counts the stakes that were withdrawn: pledges of an earlier one are gone.
    struct Stake {
        uint128 amount;
        uint64 release;
        uint32 generation;
    }

    /// @dev `place` is the pledge's index in its list, plus one; 0 for no pledge.
    struct Pledge {
        uint128 slashed;
        uint32 place;
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

    function _known(bytes32 id) internal view returns (Task storage task_) {
        task_ = _tasks[id];
        // A history begins with a hash.
        if (task_.head == 0) revert UnknownTask(id);
    }

    /// @dev Takes `amount` from `from`, and looks whether it came: a token that charges for transfers is refused.
    function _receive(address from, uint256 amount) internal {
        if (amount == 0) return;
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(from, address(this), amount);
        uint256 arrived = token.balanceOf(address(this)) - before;
        if (arrived != amount) revert WrongArrival(amount, arrived);
    }

    function _affordable(address account, uint256 needed) internal view {
        uint256 available = token.balanceOf(account);
        if (available < needed) revert Insufficient(account, available, needed);
    }

    /// @dev The last thing that a function does.
    function _send(address to, uint256 amount) internal {
        if (amount != 0) token.safeTransfer(to, amount);
    }

    function _toTreasury(uint128 amount) internal {
        treasury += amount;
    }
}
