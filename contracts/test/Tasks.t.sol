// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarket} from "../src/interfaces/IMarket.sol";
import {IMarketErrors} from "../src/interfaces/IMarketErrors.sol";
import {IMarketEvents} from "../src/interfaces/IMarketEvents.sol";
import {PostedSettlement, Receipt, TaskState, Terms} from "../src/interfaces/Types.sol";
import {MarketTest} from "./MarketTest.sol";

/// @title Opening and closing tasks.
contract TasksTest is MarketTest {
    uint256 private constant HALF_ORDER =
        0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0;
    uint256 private constant ORDER =
        0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;

    function test_only_the_buyer_opens_its_task() external {
        expectError(abi.encodeWithSelector(IMarketErrors.Unauthorized.selector, stranger, buyer));
        vm.prank(stranger);
        market.openTask(terms(TASK));
    }

    function test_a_task_id_can_be_used_only_once() external {
        openTask();
        expectError(abi.encodeWithSelector(IMarketErrors.TaskExists.selector, TASK));
        openTask();
    }

    function test_a_buyer_cannot_be_its_own_arbiter() external {
        Terms memory t = terms(TASK);
        t.arbiter = buyer;
        vm.expectPartialRevert(IMarketErrors.InvalidArgument.selector);
        openTask(t);
    }

    function test_a_task_has_an_arbiter_and_a_challenge_window() external {
        Terms memory t = terms(TASK);
        t.arbiter = address(0);
        expectError(
            abi.encodeWithSelector(
                IMarketErrors.InvalidArgument.selector, "the arbiter is the zero address"
            )
        );
        openTask(t);
        t.arbiter = arbiter;
        t.challengeMs = 0;
        expectError(
            abi.encodeWithSelector(
                IMarketErrors.InvalidArgument.selector, "a challenge window of 0"
            )
        );
        openTask(t);
        t.challengeMs = 1;
        openTask(t);
    }

    function test_a_task_lasts_366_days_at_most() external {
        uint64 latest = market.clock() + 366 days * 1_000;
        Terms memory t = terms(TASK);
        for (uint256 i = 0; i < 2; ++i) {
            t.expires = i == 0 ? latest + 1 : type(uint64).max;
            expectError(
                abi.encodeWithSelector(
                    IMarketErrors.LimitExceeded.selector, "expires: 366 days from now"
                )
            );
            openTask(t);
        }
        t.expires = latest;
        openTask(t);
        vm.assertEq(task().terms.expires, latest, "stored in full");
    }

    function test_a_data_pool_below_the_minimum_is_refused() external {
        Terms memory t = terms(TASK);
        t.data = 1e15 - 1;
        expectError(abi.encodeWithSelector(IMarketErrors.TooSmall.selector, 1e15 - 1, 1e15));
        openTask(t);
        t.data = 1e15;
        openTask(t);
    }

    function test_delays_last_30_days_at_most() external {
        uint64 most = 30 days * 1_000;
        Terms memory t = terms(TASK);
        t.challengeMs = most + 1;
        expectError(
            abi.encodeWithSelector(IMarketErrors.LimitExceeded.selector, "challengeMs: 30 days")
        );
        openTask(t);
        t.challengeMs = most;
        t.unbondMs = most + 1;
        expectError(
            abi.encodeWithSelector(IMarketErrors.LimitExceeded.selector, "unbondMs: 30 days")
        );
        openTask(t);
        t.unbondMs = most;
        openTask(t);
        vm.assertEq(task().terms.challengeMs, most, "challengeMs is stored in full");
        vm.assertEq(task().terms.unbondMs, most, "unbondMs is stored in full");
    }

    function test_a_task_has_rounds_and_a_floor_share_of_at_most_one() external {
        Terms memory t = terms(TASK);
        t.rounds = 0;
        vm.expectPartialRevert(IMarketErrors.InvalidArgument.selector);
        openTask(t);
        t.rounds = type(uint32).max;
        t.floorShare = 1_000_001;
        vm.expectPartialRevert(IMarketErrors.InvalidArgument.selector);
        openTask(t);
        t.floorShare = 1_000_000;
        t.perNatMax = uint128(2) ** 96;
        vm.expectPartialRevert(IMarketErrors.LimitExceeded.selector);
        openTask(t);
        t.perNatMax = type(uint96).max;
        openTask(t);
        vm.assertEq(task().terms.rounds, type(uint32).max, "rounds are stored in full");
        vm.assertEq(task().terms.floorShare, 1_000_000, "the floor share is stored");
        vm.assertEq(task().terms.perNatMax, type(uint96).max, "the price is stored in full");
    }

    function test_pools_beyond_96_bits_are_refused_and_do_not_wrap() external {
        Terms memory t = terms(TASK);
        t.data = type(uint128).max;
        t.infrastructure = type(uint128).max;
        vm.expectPartialRevert(IMarketErrors.LimitExceeded.selector);
        openTask(t);
        t.data = type(uint96).max;
        t.infrastructure = 1;
        vm.expectPartialRevert(IMarketErrors.LimitExceeded.selector);
        openTask(t);
    }

    function test_a_deposit_above_the_balance_is_refused() external {
        Terms memory t = terms(TASK);
        t.data = uint128(10_000 * FLN);
        uint256 needed = 10_200 * FLN;
        expectError(
            abi.encodeWithSelector(IMarketErrors.Insufficient.selector, buyer, 10_000 * FLN, needed)
        );
        openTask(t);
    }

    function test_opening_locks_both_pools() external {
        uint256 before = token.balanceOf(buyer);
        openTask();
        TaskState memory t = task();
        vm.assertEq(t.dataLocked, 1_000 * FLN, "data");
        vm.assertEq(t.infrastructureLocked, 200 * FLN, "infrastructure");
        vm.assertEq(before - token.balanceOf(buyer), 1_200 * FLN, "paid");
        vm.assertEq(token.balanceOf(address(market)), 1_200 * FLN, "arrived");
        bytes32 stored = keccak256(abi.encode(t.terms));
        vm.assertEq(stored, keccak256(abi.encode(terms(TASK))), "the terms are unchanged");
    }

    function test_a_task_never_opened_is_all_zeros_and_unknown() external {
        TaskState memory zero;
        vm.assertEq(
            keccak256(abi.encode(market.task(TASK))), keccak256(abi.encode(zero)), "zeros"
        );
        PostedSettlement[] memory none;
        bytes memory unknown = abi.encodeWithSelector(IMarketErrors.UnknownTask.selector, TASK);
        expectError(unknown);
        market.close(TASK, none);
        expectError(unknown);
        market.finalize(TASK, none);
        expectError(unknown);
        market.cancel(TASK, 0, none);
        expectError(unknown);
        market.bond(TASK, 1);
        expectError(unknown);
        market.unbond(TASK);
        expectError(unknown);
        market.withdrawBond(TASK);
        expectError(unknown);
        market.pledge(TASK);
        expectError(unknown);
        market.slash(slashOrder(ada, false, 1));
        expectError(unknown);
        market.post(settlement(1, 0, 0, 0), last(TASK));
        expectError(unknown);
        claim(adasClaim(1, 0, 1));
    }

    // -------------------------------------------------------------------------------- by signature

    function signed(Terms memory t, uint64 deadline) private view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) =
            vm.sign(BUYER_KEY, market.openTaskDigest(t, deadline));
        return abi.encodePacked(r, s, v);
    }

    function test_any_account_may_open_a_task_signed_by_its_buyer() external {
        bytes memory signature = signed(terms(TASK), market.clock());
        uint64 deadline = market.clock();
        vm.prank(stranger);
        market.openTaskFor(terms(TASK), deadline, signature);
        vm.assertEq(task().terms.buyer, buyer, "buyer");
        vm.assertEq(token.balanceOf(buyer), 8_800 * FLN, "the buyer pays");
        expectError(abi.encodeWithSelector(IMarketErrors.TaskExists.selector, TASK));
        market.openTaskFor(terms(TASK), deadline, signature);
    }

    function test_a_signature_has_a_deadline() external {
        uint64 deadline = market.clock() - 1;
        bytes memory signature = signed(terms(TASK), deadline);
        expectError(abi.encodeWithSelector(IMarketErrors.WindowClosed.selector, deadline));
        market.openTaskFor(terms(TASK), deadline, signature);
    }

    function test_a_signature_covers_every_term() external {
        uint64 deadline = market.clock();
        bytes memory signature = signed(terms(TASK), deadline);
        for (uint256 i = 0; i < 12; ++i) {
            bytes memory encoded = abi.encode(terms(TASK));
            encoded[32 * i + 31] ^= 0x01;
            expectError(abi.encodeWithSelector(IMarketErrors.InvalidSignature.selector));
            market.openTaskFor(abi.decode(encoded, (Terms)), deadline, signature);
        }
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidSignature.selector));
        market.openTaskFor(terms(TASK), deadline + 1, signature);
    }

    function test_a_signature_with_a_high_s_is_refused() external {
        uint64 deadline = market.clock();
        (uint8 v, bytes32 r, bytes32 s) =
            vm.sign(BUYER_KEY, market.openTaskDigest(terms(TASK), deadline));
        bytes32 high = bytes32(ORDER - uint256(s));
        require(uint256(high) > HALF_ORDER, "the original signature is canonical");
        bytes memory signature = abi.encodePacked(r, high, v == 27 ? uint8(28) : uint8(27));
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidSignature.selector));
        market.openTaskFor(terms(TASK), deadline, signature);
    }

    function test_a_signature_for_another_chain_or_deployment_is_refused() external {
        uint64 deadline = market.clock();
        bytes memory signature = signed(terms(TASK), deadline);
        IMarket other = IMarket(vm.deployCode("Market.sol:Market", abi.encode(token)));
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidSignature.selector));
        other.openTaskFor(terms(TASK), deadline, signature);
        vm.chainId(4_242);
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidSignature.selector));
        market.openTaskFor(terms(TASK), deadline, signature);
    }

    function test_the_digest_is_eip_712() external view {
        Terms memory t = terms(TASK);
        bytes32 domain = keccak256(
            abi.encode(
                keccak256(
                    "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
                ),
                keccak256("Florin"),
                keccak256("1"),
                block.chainid,
                address(market)
            )
        );
        bytes32 kind = keccak256(
            "OpenTask(bytes32 task,address buyer,address coordinator,address arbiter,uint128 data,uint128 infrastructure,uint32 rounds,uint128 perNatMax,uint32 floorShare,uint128 bondMin,uint128 debitMax,uint128 stakeMin,uint64 challengeMs,uint64 unbondMs,uint64 expires,uint64 deadline)"
        );
        bytes memory first =
            abi.encode(kind, t.task, t.buyer, t.coordinator, t.arbiter, t.data, t.infrastructure);
        first = bytes.concat(first, abi.encode(t.rounds, t.perNatMax, t.floorShare));
        bytes memory second = abi.encode(
            t.bondMin, t.debitMax, t.stakeMin, t.challengeMs, t.unbondMs, t.expires, uint64(7)
        );
        bytes32 fields = keccak256(bytes.concat(first, second));
        vm.assertEq(
            market.openTaskDigest(t, 7),
            keccak256(abi.encodePacked(hex"1901", domain, fields)),
            "digest"
        );
    }

    // ------------------------------------------------------------------------------------- closing

    function test_the_coordinator_closes_after_its_last_round_and_the_rest_is_refunded() external {
        openTask();
        settle(20, 30 * FLN, 0, 20 * FLN);
        uint256 before = token.balanceOf(buyer);
        PostedSettlement[] memory none = pending();
        vm.prank(coordinator);
        uint128 refund = market.close(TASK, none);
        vm.assertEq(refund, 1_150 * FLN, "refund");
        vm.assertEq(token.balanceOf(buyer) - before, 1_150 * FLN, "the buyer has it");
        TaskState memory t = task();
        vm.assertTrue(t.closed, "closed");
        vm.assertEq(t.dataLocked + t.infrastructureLocked, 0, "nothing is locked");
        vm.assertEq(t.refunded, 1_150 * FLN, "refunded");
        vm.assertEq(t.owed, 50 * FLN, "owed stays");
        expectError(abi.encodeWithSelector(IMarketErrors.TaskClosed.selector, TASK));
        market.close(TASK, none);
        vm.assertEq(claim(adasClaim(30 * FLN, 0, 20 * FLN)), 30 * FLN, "claims go on");
    }

    function test_other_accounts_close_only_an_expired_task() external {
        openTask();
        uint64 expires = terms(TASK).expires;
        PostedSettlement[] memory none;
        vm.warp(expires / 1_000);
        bytes memory early =
            abi.encodeWithSelector(IMarketErrors.TooEarly.selector, expires + 1, expires);
        expectError(early);
        vm.prank(stranger);
        market.close(TASK, none);
        expectError(early);
        vm.prank(buyer);
        market.close(TASK, none);
        vm.warp(expires / 1_000 + 1);
        vm.prank(stranger);
        vm.assertEq(market.close(TASK, none), 1_200 * FLN, "all of it goes back");
    }

    function test_closing_waits_for_every_window_and_finalises_what_is_due() external {
        openTask();
        post(19, "a", 10, 0);
        advance(60_000);
        post(20, "b", 20, 5);
        advance(WINDOW - 60_000);
        PostedSettlement[] memory both = pending();
        expectError(abi.encodeWithSelector(IMarketErrors.SettlementsPending.selector, 2));
        vm.prank(coordinator);
        market.close(TASK, both);
        advance(1_000);
        expectError(abi.encodeWithSelector(IMarketErrors.SettlementsPending.selector, 1));
        vm.prank(coordinator);
        market.close(TASK, both);
        PostedSettlement[] memory none;
        expectError(abi.encodeWithSelector(IMarketErrors.StaleHead.selector, task().head));
        vm.prank(coordinator);
        market.close(TASK, none);
        advance(60_000);
        vm.prank(coordinator);
        vm.assertEq(market.close(TASK, both), 1_200 * FLN - 25, "refund");
        vm.assertEq(task().root, "b", "root");
        vm.assertEq(task().owed, 25, "owed");
        vm.assertEq(task().pending, 0, "pending");
    }

    // --------------------------------------------------------------------- announcing and objecting

    function expectTooEarly(uint64 moment) private {
        uint64 current = market.clock();
        expectError(abi.encodeWithSelector(IMarketErrors.TooEarly.selector, moment, current));
    }

    function announce() private {
        vm.prank(coordinator);
        market.announceClose(TASK);
    }

    function test_a_close_before_the_expiry_is_announced_a_window_ahead() external {
        openTask();
        settle(1, 30 * FLN, 0, 20 * FLN);
        PostedSettlement[] memory none;
        expectTooEarly(terms(TASK).expires + 1);
        vm.prank(coordinator);
        market.close(TASK, none);
        expectError(
            abi.encodeWithSelector(IMarketErrors.Unauthorized.selector, buyer, coordinator)
        );
        vm.prank(buyer);
        market.announceClose(TASK);
        uint64 closesAt = market.clock() + WINDOW;
        vm.expectEmit();
        emit IMarketEvents.CloseAnnounced(TASK, closesAt);
        announce();
        advance(1_000);
        announce();
        vm.assertEq(task().closesAt, closesAt, "a second announcement changes nothing");
        vm.warp(closesAt / 1_000 - 1);
        expectTooEarly(closesAt);
        vm.prank(coordinator);
        market.close(TASK, none);
        vm.warp(closesAt / 1_000);
        vm.prank(stranger);
        vm.assertEq(market.close(TASK, none), 1_150 * FLN, "any account closes then");
        expectError(abi.encodeWithSelector(IMarketErrors.TaskClosed.selector, TASK));
        announce();
    }

    function test_a_post_withdraws_an_announcement() external {
        openTask();
        announce();
        post(1, "a", 10, 0);
        vm.assertEq(task().closesAt, 0, "withdrawn in the same second");
        expectError(abi.encodeWithSelector(IMarketErrors.SettlementsPending.selector, 1));
        announce();
        advance(WINDOW + 1_000);
        PostedSettlement[] memory list_ = pending();
        expectTooEarly(terms(TASK).expires + 1);
        vm.prank(coordinator);
        market.close(TASK, list_);
        finalize();
        announce();
        vm.assertEq(task().closesAt, market.clock() + WINDOW, "announced again");
    }

    function test_an_expired_task_needs_no_announced_moment() external {
        Terms memory t = terms(TASK);
        t.expires = market.clock() + 1_000;
        openTask(t);
        announce();
        vm.warp(t.expires / 1_000 + 1);
        PostedSettlement[] memory none;
        vm.prank(stranger);
        market.close(TASK, none);
    }

    function test_a_cancellation_or_a_coordinator_that_is_the_arbiter_needs_no_window() external {
        openTask();
        post(1, "a", 10, 0);
        cancel(0);
        PostedSettlement[] memory none;
        expectTooEarly(terms(TASK).expires + 1);
        vm.prank(stranger);
        market.close(TASK, none);
        vm.prank(coordinator);
        market.close(TASK, none);
        Terms memory t = terms("trusted");
        t.arbiter = coordinator;
        openTask(t);
        vm.prank(coordinator);
        market.close("trusted", none);
    }

    function test_a_receipt_of_an_unsettled_round_costs_the_bond_and_holds_up_the_close() external {
        openTask();
        settle(1, 30 * FLN, 0, 20 * FLN);
        uint128 held = market.bondOf(TASK, coordinator).amount;
        vm.assertTrue(held > 0, "a bond");
        (Receipt memory r, bytes memory signature) = signedReceipt(TASK, 2, COORDINATOR_KEY);
        expectError(
            abi.encodeWithSelector(IMarketErrors.NotFound.selector, "no close is announced")
        );
        market.object(r, signature);
        announce();
        (Receipt memory old, bytes memory oldSignature) = signedReceipt(TASK, 1, COORDINATOR_KEY);
        expectError(
            abi.encodeWithSelector(IMarketErrors.InvalidArgument.selector, "the round is settled")
        );
        market.object(old, oldSignature);
        (Receipt memory f, bytes memory forged) = signedReceipt(TASK, 2, BUYER_KEY);
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidSignature.selector));
        market.object(f, forged);
        r.round = 3;
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidSignature.selector));
        market.object(r, signature);
        r.round = 2;
        r.sender = ben;
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidSignature.selector));
        market.object(r, signature);
        r.sender = ada;
        uint128 treasury = market.treasury();
        vm.expectEmit();
        emit IMarketEvents.CloseObjected(TASK, ada, 2, held);
        vm.prank(stranger);
        vm.assertEq(market.object(r, signature), held, "taken");
        vm.assertEq(market.treasury() - treasury, held, "to the treasury");
        vm.assertEq(market.bondOf(TASK, coordinator).amount, 0, "the whole bond");
        vm.assertEq(market.coveredOf(TASK), 50 * FLN, "nothing covers further posts");
        vm.assertEq(task().closesAt, 0, "withdrawn");
        // A settlement of the round answers the receipt.
        announce();
        post(2, "b", 50 * FLN, 0);
        expectError(abi.encodeWithSelector(IMarketErrors.SettlementsPending.selector, 1));
        market.object(r, signature);
        advance(WINDOW + 1_000);
        finalize();
        announce();
        expectError(
            abi.encodeWithSelector(IMarketErrors.InvalidArgument.selector, "the round is settled")
        );
        market.object(r, signature);
    }

    function test_the_digest_of_a_receipt_is_that_of_eip_712() external view {
        Receipt memory r = Receipt(TASK, 7, ada, "update");
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId)"),
                keccak256("Florin"),
                keccak256("1"),
                block.chainid
            )
        );
        bytes32 fields = keccak256(
            abi.encode(
                keccak256("Receipt(bytes32 task,uint64 round,address sender,bytes32 update)"),
                r.task,
                r.round,
                r.sender,
                r.update
            )
        );
        vm.assertEq(
            market.receiptDigest(r), keccak256(abi.encodePacked(hex"1901", domain, fields)), "digest"
        );
    }
}
