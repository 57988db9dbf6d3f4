// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {MessageHashUtils} from
    "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import {SignatureChecker} from
    "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";
import {IMarket} from "../interfaces/IMarket.sol";
import {PostedSettlement, Receipt, TaskState, Terms} from "../interfaces/Types.sol";
import {Limits} from "./Limits.sol";
import {SettlementChain} from "./SettlementChain.sol";
import {Settlements} from "./Settlements.sol";

/// @title Tasks: opening locks the budget in escrow; closing refunds the rest.
abstract contract Tasks is Settlements, EIP712 {
    bytes32 private constant OPEN_TASK_TYPE = keccak256(
        "OpenTask(bytes32 task,address buyer,address coordinator,address arbiter,uint128 data,"
        "uint128 infrastructure,uint32 rounds,uint128 perNatMax,uint32 floorShare,uint128 bondMin,uint128 debitMax,uint128 stakeMin,"
        "uint64 challengeMs,uint64 unbondMs,uint64 expires,uint64 deadline)"
    );

    bytes32 private constant RECEIPT_TYPE =
        keccak256("Receipt(bytes32 task,uint64 round,address sender,bytes32 update)");
    /// @dev The domain of receipts has no contract: a task's id depends on its market.
    bytes32 private constant CHAIN_DOMAIN_TYPE =
        keccak256("EIP712Domain(string name,string version,uint256 chainId)");
    bytes32 private constant DOMAIN_NAME = keccak256("Florin");
    bytes32 private constant DOMAIN_VERSION = keccak256("1");

    /// @inheritdoc IMarket
    function openTask(Terms calldata terms) external nonReentrant {
        if (msg.sender != terms.buyer) revert Unauthorized(msg.sender, terms.buyer);
        _open(terms);
    }

    /// @inheritdoc IMarket
    function openTaskFor(Terms calldata terms, uint64 deadline, bytes calldata signature)
        external
        nonReentrant
    {
        if (clock() > deadline) revert WindowClosed(deadline);
        bytes32 digest = openTaskDigest(terms, deadline);
        if (!SignatureChecker.isValidSignatureNowCalldata(terms.buyer, digest, signature)) {
            revert InvalidSignature();
        }
        _open(terms);
    }

    /// @inheritdoc IMarket
    function close(bytes32 id, PostedSettlement[] calldata pending)
        external
        nonReentrant
        returns (uint128 refund)
    {
        Task storage task_ = _existingTask(id);
        if (task_.progress.closed) revert TaskClosed(id);
        uint256 count = _finalizeDue(id, task_, pending);
        uint256 waiting = task_.progress.pending;
        if (waiting != 0) {
            // A list that ends at the checkpoint omits later settlements, which are not due either.
            if (pending.length != count + waiting) revert StaleHead(task_.head);
            revert SettlementsPending(uint64(waiting));
        }
        uint64 current = clock();
        uint64 earliest = _closableAt(task_, msg.sender);
        if (current < earliest) revert TooEarly(earliest, current);
        refund = task_.data - task_.dataPaid + task_.infrastructure - task_.infrastructurePaid;
        task_.progress.closed = true;
        task_.refunded = refund;
        emit TaskSettled(id, refund);
        _send(task_.buyer, refund);
    }

    /// @inheritdoc IMarket
    function announceClose(bytes32 id) external {
        Task storage task_ = _existingTask(id);
        address coordinator = task_.coordinator;
        if (msg.sender != coordinator) revert Unauthorized(msg.sender, coordinator);
        _requireSettled(id, task_);
        if (_announced(task_) != 0) return;
        uint64 closesAt = clock() + task_.challengeMs;
        task_.closesAt = closesAt;
        emit CloseAnnounced(id, closesAt);
    }

    /// @inheritdoc IMarket
    function object(Receipt calldata receipt, bytes calldata signature)
        external
        returns (uint128 taken)
    {
        bytes32 id = receipt.task;
        Task storage task_ = _existingTask(id);
        _requireSettled(id, task_);
        if (_announced(task_) == 0) revert NotFound("no close is announced");
        if (receipt.round <= task_.round) revert InvalidArgument("the round is settled");
        address coordinator = task_.coordinator;
        bytes32 digest = receiptDigest(receipt);
        if (!SignatureChecker.isValidSignatureNowCalldata(coordinator, digest, signature)) {
            revert InvalidSignature();
        }
        task_.closesAt = 0;
        Bond storage bond_ = _accounts[id][coordinator].bond;
        taken = bond_.amount;
        bond_.amount = 0;
        _updateCover(task_, coordinator, bond_);
        _toTreasury(taken);
        emit CloseObjected(id, receipt.sender, receipt.round, taken);
    }

    /// @inheritdoc IMarket
    function task(bytes32 id) external view returns (TaskState memory state) {
        Task storage task_ = _tasks[id];
        bool closed = task_.progress.closed;
        state.terms = _terms(id, task_);
        state.dataLocked = closed ? 0 : task_.data - task_.dataPaid;
        state.infrastructureLocked =
            closed ? 0 : task_.infrastructure - task_.infrastructurePaid;
        state.dataPaid = task_.dataPaid;
        state.infrastructurePaid = task_.infrastructurePaid;
        state.refunded = task_.refunded;
        state.owed = task_.claimable.owed;
        state.root = task_.root;
        state.round = task_.round;
        state.finalised = task_.finalised;
        state.pending = task_.progress.pending;
        state.lastPost = uint64(task_.progress.lastPost) * 1_000;
        state.closesAt = closed ? 0 : _announced(task_);
        state.closed = closed;
        state.head = task_.head;
        state.finalHead = task_.finalHead;
        state.checkpoint = task_.checkpoint;
    }

    /// @inheritdoc IMarket
    function coveredOf(bytes32 id) external view returns (uint128) {
        return _tasks[id].progress.covered;
    }

    /// @inheritdoc IMarket
    function openTaskDigest(Terms calldata terms, uint64 deadline)
        public
        view
        returns (bytes32)
    {
        // Every field takes 32 bytes, so `abi.encode` is the EIP-712 encoding of the terms.
        return _hashTypedDataV4(keccak256(abi.encode(OPEN_TASK_TYPE, terms, deadline)));
    }

    /// @inheritdoc IMarket
    function receiptDigest(Receipt calldata receipt) public view returns (bytes32) {
        bytes32 domain =
            keccak256(abi.encode(CHAIN_DOMAIN_TYPE, DOMAIN_NAME, DOMAIN_VERSION, block.chainid));
        // Every field takes 32 bytes, so `abi.encode` is the EIP-712 encoding of the receipt.
        bytes32 fields = keccak256(abi.encode(RECEIPT_TYPE, receipt));
        return MessageHashUtils.toTypedDataHash(domain, fields);
    }

    /// @dev The moment of an announced close, or 0. A post withdraws an announcement: its clock is
    /// that of the announcement or a later one, because nothing was pending then.
    function _announced(Task storage task_) private view returns (uint64) {
        uint64 closesAt = task_.closesAt;
        bool posted = uint256(task_.progress.lastPost) * 1_000 + task_.challengeMs >= closesAt;
        return posted ? 0 : closesAt;
    }

    /// @dev The moment from which an account may close the task. A coordinator closes at any time
    /// after its last round, after a cancellation, or if it is the arbiter: then no other account
    /// decides.
    function _closableAt(Task storage task_, address account) private view returns (uint64) {
        address coordinator = task_.coordinator;
        bool free = task_.round >= task_.rounds || task_.cancelled
            || task_.arbiter == coordinator;
        if (account == coordinator && free) return 0;
        uint64 expired = task_.expires + 1;
        uint64 announced = _announced(task_);
        return announced != 0 && announced < expired ? announced : expired;
    }

    /// @dev Refuses a closed task, and one with a settlement that is not final.
    function _requireSettled(bytes32 id, Task storage task_) private view {
        if (task_.progress.closed) revert TaskClosed(id);
        uint64 pending = task_.progress.pending;
        if (pending != 0) revert SettlementsPending(pending);
    }

    function _open(Terms calldata terms) private {
        Task storage task_ = _tasks[terms.task];
        if (task_.head != 0) revert TaskExists(terms.task);
        if (terms.arbiter == terms.buyer) {
            revert InvalidArgument("a buyer as arbiter could cancel every settlement");
        }
        if (terms.arbiter == address(0)) {
            revert InvalidArgument("the arbiter is the zero address");
        }
        if (terms.challengeMs == 0) revert InvalidArgument("a challenge window of 0");
        if (terms.rounds == 0) revert InvalidArgument("a task of 0 rounds");
        if (terms.floorShare > Limits.FLOOR_SHARE_MAX) {
            revert InvalidArgument("floorShare: at most 1,000,000 millionths");
        }
        if (terms.perNatMax > Limits.PER_NAT_MAX) revert LimitExceeded("perNatMax: 2^96 - 1");
        if (terms.data < Limits.DATA_MIN) revert TooSmall(terms.data, Limits.DATA_MIN);
        if (terms.challengeMs > Limits.DELAY_MS_MAX) revert LimitExceeded("challengeMs: 30 days");
        if (terms.unbondMs > Limits.DELAY_MS_MAX) revert LimitExceeded("unbondMs: 30 days");
        if (terms.expires > clock() + Limits.TASK_MS_MAX) {
            revert LimitExceeded("expires: 366 days from now");
        }
        uint256 deposit = uint256(terms.data) + terms.infrastructure;
        if (deposit > Limits.DEPOSIT_MAX) revert LimitExceeded("both pools together: 2^96 - 1");
        _requireBalance(terms.buyer, deposit);
        _store(task_, terms);
        emit TaskOpened(terms.task, terms.buyer, terms);
        _pullTokens(terms.buyer, deposit);
    }

    function _store(Task storage task_, Terms calldata terms) private {
        task_.coordinator = terms.coordinator;
        task_.expires = terms.expires;
        // The limit of 30 days makes both delays fit into 32 bits.
        task_.challengeMs = uint32(terms.challengeMs);
        task_.arbiter = terms.arbiter;
        task_.unbondMs = uint32(terms.unbondMs);
        task_.buyer = terms.buyer;
        // Both pools together, and the price of a nat, fit into 96 bits: checked above.
        task_.data = uint96(terms.data);
        task_.infrastructure = uint96(terms.infrastructure);
        task_.rounds = terms.rounds;
        task_.floorShare = terms.floorShare;
        task_.progress.perNatMax = uint96(terms.perNatMax);
        // A coordinator that is the arbiter could not be slashed by another account: no bond is
        // required of it. The participants have accepted it by name.
        if (terms.arbiter == terms.coordinator) task_.progress.covered = type(uint96).max;
        task_.bondMin = terms.bondMin;
        task_.debitMax = terms.debitMax;
        task_.stakeMin = terms.stakeMin;
        bytes32 start = SettlementChain.initialHash();
        task_.head = start;
        task_.finalHead = start;
        task_.checkpoint = start;
    }

    function _terms(bytes32 id, Task storage task_) private view returns (Terms memory terms) {
        if (task_.head == 0) return terms;
        terms.task = id;
        terms.buyer = task_.buyer;
        terms.coordinator = task_.coordinator;
        terms.arbiter = task_.arbiter;
        terms.data = task_.data;
        terms.infrastructure = task_.infrastructure;
        terms.rounds = task_.rounds;
        terms.perNatMax = task_.progress.perNatMax;
        terms.floorShare = task_.floorShare;
        terms.bondMin = task_.bondMin;
        terms.debitMax = task_.debitMax;
        terms.stakeMin = task_.stakeMin;
        terms.challengeMs = task_.challengeMs;
        terms.unbondMs = task_.unbondMs;
        terms.expires = task_.expires;
    }
}
