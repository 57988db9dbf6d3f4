// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarket} from "../interfaces/IMarket.sol";
import {LastSettlement, PostedSettlement, PostOutcome, Settlement} from "../interfaces/Types.sol";
import {Limits} from "./Limits.sol";
import {MarketStorage} from "./MarketStorage.sol";
import {SettlementChain} from "./SettlementChain.sol";

/// @title Settlements: the coordinator posts them, the arbiter can cancel them within their
/// challenge window, and they are final after it.
abstract contract Settlements is MarketStorage {
    uint256 private constant NANO_PER_NAT = 1e9;

    /// @inheritdoc IMarket
    function post(Settlement calldata settlement, LastSettlement calldata last)
        external
        returns (PostOutcome)
    {
        Task storage task_ = _tasks[settlement.task];
        // Reads each slot only once; another read costs 100 gas.
        bytes32 head = task_.head;
        if (head == 0) revert UnknownTask(settlement.task);
        (address coordinator, uint64 expires, uint64 window) =
            (task_.coordinator, task_.expires, task_.challengeMs);
        if (msg.sender != coordinator) revert Unauthorized(msg.sender, coordinator);
        Progress memory progress = task_.progress;
        bytes32 lastHead = SettlementChain.headOf(last);
        if (lastHead != head) {
            // A repeated call is not an error: then `last` is the settlement before it.
            uint64 posted = uint64(progress.lastPost) * 1_000;
            if (_entry(lastHead, settlement, posted + window) != head) {
                revert StaleHead(head);
            }
            return PostOutcome.AlreadyPosted;
        }
        if (settlement.round == last.round && last.round != 0) {
            revert ConflictingSettlement(settlement.task, settlement.round);
        }
        if (progress.closed) revert TaskClosed(settlement.task);
        if (progress.pending >= Limits.PENDING_MAX) {
            revert LimitExceeded("64 settlements are pending");
        }
        uint64 current = clock();
        if (current > expires) {
            revert InvalidSettlement(settlement.round, "the task has expired");
        }
        _check(task_, settlement, last, progress.perNatMax);
        // The bond covers the pay that is posted and not final.
        uint256 total = uint256(settlement.dataTotal) + settlement.infrastructureTotal;
        if (total > progress.covered) _revertUncovered(task_, total, progress.covered);
        uint64 finalAt = current + window;
        progress.pending += 1;
        progress.lastPost = uint40(block.timestamp);
        task_.progress = progress;
        task_.head = _entry(head, settlement, finalAt);
        emit SettlementPosted(
            settlement.task,
            settlement.round,
            settlement.report,
            settlement.root,
            settlement.dataTotal,
            settlement.scorePayTotal,
            settlement.infrastructureTotal,
            settlement.improvementTotalNano,
            finalAt
        );
        return PostOutcome.Posted;
    }

    /// @inheritdoc IMarket
    function checkpointHead(bytes32 id) external {
        Task storage task_ = _existingTask(id);
        address arbiter = task_.arbiter;
        if (msg.sender != arbiter) revert Unauthorized(msg.sender, arbiter);
        bytes32 head = task_.head;
        task_.checkpoint = head;
        task_.progress.checkpointed = task_.progress.pending;
        emit HeadCheckpointed(id, head);
    }

    /// @inheritdoc IMarket
    function cancel(bytes32 id, bytes32 before, PostedSettlement[] calldata from) external {
        Task storage task_ = _existingTask(id);
        address arbiter = task_.arbiter;
        if (msg.sender != arbiter) revert Unauthorized(msg.sender, arbiter);
        if (from.length == 0) revert NotFound("the list of settlements to cancel is empty");
        uint256 last = _countUpTo(task_, before, from);
        uint64 finalAt = from[0].finalAt;
        Progress memory progress = task_.progress;
        // A list may begin before the last final settlement; the windows of final settlements are
        // over.
        if (clock() > finalAt || last < from.length) {
            revert WindowClosed(finalAt);
        }
        progress.pending = uint8(last - from.length);
        if (progress.checkpointed > progress.pending) {
            progress.checkpointed = progress.pending;
            task_.checkpoint = before;
        }
        task_.progress = progress;
        task_.head = before;
        task_.cancelled = true;
        emit SettlementsCancelled(id, from[0].round);
    }

    /// @inheritdoc IMarket
    function finalize(bytes32 id, PostedSettlement[] calldata pending)
        external
        returns (uint256 count)
    {
        return _finalizeDue(id, _existingTask(id), pending);
    }

    /// @dev Finalises the due settlements, oldest first. `pending` leads from `finalHead` to `head`
    /// or `checkpoint`.
    function _finalizeDue(bytes32 id, Task storage task_, PostedSettlement[] calldata pending)
        internal
        returns (uint256 count)
    {
        bytes32 finalHead = task_.finalHead;
        bytes32 end = finalHead;
        uint64 current = clock();
        // At most PENDING_MAX: a longer list cannot lead from finalHead to head. Each entry is hashed
        // once.
        for (uint256 i = 0; i < pending.length; ++i) {
            end = SettlementChain.extend(end, pending[i]);
            if (count == i && current > pending[i].finalAt) {
                finalHead = end;
                count = i + 1;
                emit SettlementFinalised(id, pending[i].round);
            }
        }
        _countAt(task_, end);
        if (count == 0) return 0;
        PostedSettlement calldata last = pending[count - 1];
        uint256 before = uint256(task_.dataPaid) + task_.infrastructurePaid;
        uint256 total = uint256(last.dataTotal) + last.infrastructureTotal;
        Progress memory progress = task_.progress;
        // `count` is at most the number of pending settlements up to the end of the list.
        progress.pending -= uint8(count);
        if (progress.checkpointed < count) {
            progress.checkpointed = 0;
            task_.checkpoint = finalHead;
        } else {
            progress.checkpointed -= uint8(count);
        }
        // Final pay needs no cover any more.
        uint256 covered = progress.covered + (total - before);
        progress.covered = covered < type(uint96).max ? uint96(covered) : type(uint96).max;
        task_.progress = progress;
        task_.finalHead = finalHead;
        task_.root = last.root;
        // Both totals are within the deposit, which fits into 96 bits.
        task_.dataPaid = uint96(last.dataTotal);
        task_.infrastructurePaid = uint96(last.infrastructureTotal);
        task_.round = last.round;
        task_.finalised += uint32(count);
        task_.claimable.owed += uint96(total - before);
        task_.claimable.tag = bytes20(last.root);
    }

    /// @dev The number of pending settlements up to the end of `list`, if it leads from `before` to
    /// `head` or `checkpoint`.
    function _countUpTo(Task storage task_, bytes32 before, PostedSettlement[] calldata list)
        private
        view
        returns (uint256)
    {
        bytes32 end = before;
        for (uint256 i = 0; i < list.length; ++i) {
            end = SettlementChain.extend(end, list[i]);
        }
        return _countAt(task_, end);
    }

    /// @dev The number of pending settlements up to `end`, which is `head` or `checkpoint`.
    function _countAt(Task storage task_, bytes32 end) private view returns (uint256) {
        bytes32 head = task_.head;
        if (end == head) return task_.progress.pending;
        if (end == task_.checkpoint) return task_.progress.checkpointed;
        revert StaleHead(head);
    }

    /// @dev The totals of a task never decrease, and `covered` is at least what is final.
    function _revertUncovered(Task storage task_, uint256 total, uint256 covered) private view {
        uint256 paid = uint256(task_.dataPaid) + task_.infrastructurePaid;
        revert TooSmall(covered - paid, total - paid);
    }

    function _entry(bytes32 before, Settlement calldata settlement, uint64 finalAt)
        private
        pure
        returns (bytes32)
    {
        return SettlementChain.entry(
            SettlementChain.innerHash(
                before,
                settlement.report,
                settlement.scorePayTotal,
                settlement.improvementTotalNano,
                finalAt
            ),
            settlement.round,
            settlement.root,
            settlement.dataTotal,
            settlement.infrastructureTotal
        );
    }

    function _check(
        Task storage task_,
        Settlement calldata settlement,
        LastSettlement calldata last,
        uint256 perNatMax
    ) private view {
        uint32 round = settlement.round;
        if (round == 0) revert InvalidSettlement(round, "rounds begin with 1");
        if (round <= last.round) revert InvalidSettlement(round, "rounds must ascend");
        uint256 rounds = task_.rounds;
        if (round > rounds) revert InvalidSettlement(round, "the task has fewer rounds");
        (uint256 total, uint256 data) = (settlement.dataTotal, task_.data);
        uint256 infrastructure = settlement.infrastructureTotal;
        if (total < last.dataTotal) revert InvalidSettlement(round, "the data total decreases");
        if (infrastructure < last.infrastructureTotal) {
            revert InvalidSettlement(round, "the infrastructure total decreases");
        }
        // Totals have at most 128 bits, the other factors of a product together at most 128.
        unchecked {
            if (total * rounds > data * round) {
                revert InvalidSettlement(
                    round, "the data total exceeds the rounds' part of the deposit"
                );
            }
            if (infrastructure * rounds > uint256(task_.infrastructure) * round) {
                revert InvalidSettlement(
                    round, "the infrastructure total exceeds the rounds' part of the deposit"
                );
            }
            // Pay for scores follows the improvement of the model; other pay for data, the floor,
            // follows the rounds.
            uint256 scores = settlement.scorePayTotal;
            if (scores > total) {
                revert InvalidSettlement(round, "the pay for scores exceeds the data total");
            }
            if (scores * NANO_PER_NAT > perNatMax * settlement.improvementTotalNano) {
                revert InvalidSettlement(round, "the pay for scores exceeds the improvement");
            }
            uint256 floor = (total - scores) * rounds * Limits.FLOOR_SHARE_MAX;
            if (floor > data * task_.floorShare * round) {
                revert InvalidSettlement(round, "pay without improvement exceeds the floor");
            }
            if (settlement.root == 0 && total + infrastructure != 0) {
                revert InvalidSettlement(round, "totals above zero under an empty root");
            }
        }
    }
}
