// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarketErrors} from "../src/interfaces/IMarketErrors.sol";
import {
    LastSettlement,
    PostedSettlement,
    PostOutcome,
    Settlement,
    TaskState,
    Terms
} from "../src/interfaces/Types.sol";
import {MarketTest} from "./MarketTest.sol";

/// @title Posting, cancelling and finalising settlements.
contract SettlementsTest is MarketTest {
    function setUp() public override {
        super.setUp();
        Terms memory t = terms(TASK);
        t.rounds = 100;
        openTask(t);
    }

    /// @dev A post that must revert: the test base does not record it.
    function postUnrecorded(uint32 round, bytes32 root, uint256 data, uint256 infrastructure)
        private
    {
        Settlement memory s = settlement(round, root, data, infrastructure);
        LastSettlement memory previous = last(TASK);
        vm.prank(coordinator);
        market.post(s, previous);
    }

    function test_only_the_coordinator_posts() external {
        expectError(
            abi.encodeWithSelector(IMarketErrors.Unauthorized.selector, arbiter, coordinator)
        );
        vm.prank(arbiter);
        market.post(settlement(1, "a", 1, 0), last(TASK));
    }

    function test_posting_the_same_settlement_again_is_idempotent() external {
        Settlement memory s = settlement(1, "a", 10, 0);
        LastSettlement memory before = last(TASK);
        cover(TASK, 10);
        vm.startPrank(coordinator);
        vm.assertTrue(market.post(s, before) == PostOutcome.Posted, "new");
        bytes32 state = keccak256(abi.encode(task()));
        advance(5_000);
        vm.assertTrue(market.post(s, before) == PostOutcome.AlreadyPosted, "already");
        vm.assertEq(keccak256(abi.encode(task())), state, "nothing changed");
        s.report = "another";
        expectError(abi.encodeWithSelector(IMarketErrors.StaleHead.selector, task().head));
        market.post(s, before);
    }

    function test_posting_is_idempotent_for_a_final_settlement_of_a_closed_task() external {
        Settlement memory s = settlement(100, "a", 10, 0);
        LastSettlement memory before = last(TASK);
        post(s);
        advance(WINDOW + 1_000);
        PostedSettlement[] memory list_ = pending();
        vm.startPrank(coordinator);
        market.close(TASK, list_);
        vm.assertTrue(market.post(s, before) == PostOutcome.AlreadyPosted, "already");
    }

    function test_another_settlement_of_the_same_round_is_a_conflict() external {
        post(1, "a", 10, 0);
        expectError(abi.encodeWithSelector(IMarketErrors.ConflictingSettlement.selector, TASK, 1));
        postUnrecorded(1, "b", 10, 0);
    }

    function test_a_settlement_must_follow_the_last_active_one() external {
        LastSettlement memory first = last(TASK);
        cover(TASK, 20);
        post(1, "a", 10, 0);
        LastSettlement memory previous = last(TASK);
        bytes memory stale = abi.encodeWithSelector(IMarketErrors.StaleHead.selector, task().head);
        Settlement memory s = settlement(2, "b", 20, 0);
        vm.startPrank(coordinator);
        expectError(stale);
        market.post(s, first);
        previous.root = "x";
        expectError(stale);
        market.post(s, previous);
        previous.root = "a";
        previous.dataTotal = 0;
        expectError(stale);
        market.post(s, previous);
        previous.dataTotal = 10;
        market.post(s, previous);
    }

    function test_a_closed_task_accepts_no_settlement() external {
        closeAnnounced(TASK);
        expectError(abi.encodeWithSelector(IMarketErrors.TaskClosed.selector, TASK));
        postUnrecorded(1, "a", 10, 0);
    }

    function test_at_most_64_settlements_may_be_pending() external {
        for (uint32 round = 1; round <= 64; ++round) {
            post(round, bytes32(uint256(round)), round, 0);
        }
        vm.assertEq(task().pending, 64, "pending");
        expectError(
            abi.encodeWithSelector(
                IMarketErrors.LimitExceeded.selector, "64 settlements are pending"
            )
        );
        postUnrecorded(65, "a", 65, 0);
        advance(WINDOW + 1_000);
        vm.assertEq(finalize(), 64, "all of them in one call");
        post(65, "a", 65, 0);
    }

    function test_an_expired_task_accepts_no_settlement() external {
        vm.warp(terms(TASK).expires / 1_000 + 1);
        expectInvalidSettlement(1, "the task has expired");
        postUnrecorded(1, "a", 10, 0);
        vm.warp(terms(TASK).expires / 1_000);
        post(1, "a", 10, 0);
    }

    function test_rounds_begin_with_1_and_ascend() external {
        expectInvalidSettlement(0, "rounds begin with 1");
        postUnrecorded(0, "a", 10, 0);
        post(4, "a", 10, 0);
        expectInvalidSettlement(3, "rounds must ascend");
        postUnrecorded(3, "b", 10, 0);
        post(7, "b", 10, 0);
        expectInvalidSettlement(101, "the task has fewer rounds");
        postUnrecorded(101, "c", 10, 0);
        post(100, "c", 10, 0);
    }

    function test_totals_neither_decrease_nor_exceed_the_deposit() external {
        post(1, "a", 10, 5);
        expectInvalidSettlement(2, "the data total decreases");
        postUnrecorded(2, "b", 9, 5);
        expectInvalidSettlement(2, "the infrastructure total decreases");
        postUnrecorded(2, "b", 10, 4);
        string memory data = "the data total exceeds the rounds' part of the deposit";
        string memory infrastructure =
            "the infrastructure total exceeds the rounds' part of the deposit";
        // 1,000 and 200 FLN for 100 rounds.
        for (uint32 round = 2; round <= 100; round += 49) {
            expectInvalidSettlement(round, data);
            postUnrecorded(round, "b", 10 * FLN * round + 1, 2 * FLN * round);
            expectInvalidSettlement(round, infrastructure);
            postUnrecorded(round, "b", 10 * FLN * round, 2 * FLN * round + 1);
            post(round, "b", 10 * FLN * round, 2 * FLN * round);
        }
    }

    function test_limits_of_the_totals_are_rounded_down() external {
        Terms memory t = terms("seven");
        t.rounds = 7;
        t.data = 1e15 + 1;
        t.infrastructure = 5;
        openTask(t);
        for (uint32 round = 1; round <= 7; ++round) {
            uint256 data = uint256(t.data) * round / 7;
            uint256 infrastructure = uint256(5) * round / 7;
            Settlement memory s = settlement(round, "root", data, infrastructure);
            s.task = "seven";
            s.dataTotal += 1;
            postInvalid(s, "the data total exceeds the rounds' part of the deposit");
            s.dataTotal -= 1;
            s.infrastructureTotal += 1;
            postInvalid(s, "the infrastructure total exceeds the rounds' part of the deposit");
            s.infrastructureTotal -= 1;
            post(s);
        }
    }

    function postInvalid(Settlement memory s, string memory reason) private {
        LastSettlement memory previous = last(s.task);
        expectInvalidSettlement(s.round, reason);
        vm.prank(coordinator);
        market.post(s, previous);
    }

    /// @dev 1,000 FLN in 100 rounds, 100 FLN a nat, and a fifth as floor: 2 FLN a round.
    function test_pay_for_scores_follows_the_improvement() external {
        Settlement memory s = settlement(3, "a", 20 * FLN, 0);
        s.scorePayTotal = uint128(14 * FLN);
        s.improvementTotalNano = 140_000_000;
        s.scorePayTotal -= 1;
        postInvalid(s, "pay without improvement exceeds the floor");
        s.scorePayTotal += 1;
        s.improvementTotalNano -= 1;
        postInvalid(s, "the pay for scores exceeds the improvement");
        s.improvementTotalNano += 1;
        s.scorePayTotal = uint128(20 * FLN + 1);
        s.improvementTotalNano = type(uint64).max;
        postInvalid(s, "the pay for scores exceeds the data total");
        s.scorePayTotal = uint128(14 * FLN);
        s.improvementTotalNano = 140_000_000;
        post(s);
        // The floor alone needs no improvement.
        s = settlement(10, "b", 20 * FLN, 0);
        s.scorePayTotal = 0;
        s.improvementTotalNano = 0;
        post(s);
    }

    function test_a_full_price_and_improvement_do_not_wrap() external {
        Terms memory t = terms("dear");
        (t.perNatMax, t.rounds) = (type(uint96).max, type(uint32).max);
        (t.data, t.infrastructure) = (uint128(8_000 * FLN), 0);
        openTask(t);
        Settlement memory s = settlement(type(uint32).max, "a", 8_000 * FLN, 0);
        (s.task, s.improvementTotalNano) = ("dear", type(uint64).max);
        s.dataTotal = type(uint128).max;
        s.scorePayTotal = type(uint128).max;
        postInvalid(s, "the data total exceeds the rounds' part of the deposit");
        s.dataTotal = uint128(8_000 * FLN);
        s.scorePayTotal = s.dataTotal;
        post(s);
    }

    function test_a_zero_root_requires_zero_totals() external {
        expectInvalidSettlement(1, "totals above zero under an empty root");
        postUnrecorded(1, 0, 1, 0);
        expectInvalidSettlement(1, "totals above zero under an empty root");
        postUnrecorded(1, 0, 0, 1);
        post(1, 0, 0, 0);
    }

    // ---------------------------------------------------------------------------------- finalising

    function test_a_settlement_is_final_after_its_window_and_not_before() external {
        post(1, "a", 30, 5);
        advance(WINDOW);
        vm.assertEq(finalize(), 0, "the last moment of the window");
        vm.assertEq(task().root, 0, "no root yet");
        vm.assertEq(task().owed, 0, "nothing is owed yet");
        advance(1_000);
        vm.assertEq(finalize(), 1, "after it");
        TaskState memory t = task();
        vm.assertEq(t.root, "a", "root");
        vm.assertEq(t.owed, 35, "owed");
        vm.assertEq(t.dataPaid, 30, "data");
        vm.assertEq(t.infrastructurePaid, 5, "infrastructure");
        vm.assertEq(t.dataLocked, 1_000 * FLN - 30, "locked");
        vm.assertEq(t.round, 1, "round");
        vm.assertEq(t.finalHead, t.head, "nothing is pending");
        vm.assertEq(finalize(), 0, "again");
        vm.assertEq(task().owed, 35, "owed once");
    }

    function test_only_what_is_due_becomes_final() external {
        post(1, "a", 10, 0);
        advance(60_000);
        post(2, "b", 20, 0);
        advance(WINDOW - 59_000);
        vm.prank(stranger);
        vm.assertEq(finalize(), 1, "the first");
        vm.assertEq(task().root, "a", "root");
        vm.assertEq(task().pending, 1, "one waits");
        advance(60_000);
        vm.assertEq(finalize(), 1, "the second");
        vm.assertEq(task().owed, 20, "owed in total");
    }

    function test_a_list_that_was_never_posted_finalises_nothing() external {
        post(1, "a", 10, 0);
        advance(WINDOW + 1_000);
        PostedSettlement[] memory list_ = pending();
        bytes memory stale = abi.encodeWithSelector(IMarketErrors.StaleHead.selector, task().head);
        list_[0].root = "b";
        expectError(stale);
        market.finalize(TASK, list_);
        list_[0].root = "a";
        list_[0].dataTotal = 1_000;
        expectError(stale);
        market.finalize(TASK, list_);
        list_[0].dataTotal = 10;
        list_[0].scorePayTotal += 1;
        expectError(stale);
        market.finalize(TASK, list_);
        list_[0].scorePayTotal -= 1;
        list_[0].improvementTotalNano += 1;
        expectError(stale);
        market.finalize(TASK, list_);
        list_[0].improvementTotalNano -= 1;
        list_[0].finalAt = 0;
        expectError(stale);
        market.finalize(TASK, list_);
    }

    function test_a_final_root_is_not_replaced_by_an_older_list() external {
        post(1, "a", 10, 0);
        PostedSettlement[] memory first = pending();
        advance(WINDOW + 1_000);
        finalize();
        post(2, "b", 20, 0);
        advance(WINDOW + 1_000);
        finalize();
        expectError(abi.encodeWithSelector(IMarketErrors.StaleHead.selector, task().head));
        market.finalize(TASK, first);
        vm.assertEq(task().root, "b", "root");
    }

    // ---------------------------------------------------------------------------------- cancelling

    function test_the_arbiter_cancels_a_settlement_and_all_later_ones() external {
        post(1, "a", 10, 0);
        post(2, "b", 20, 0);
        post(3, "c", 30, 0);
        bytes32 first = heads[TASK][1];
        cancel(1);
        vm.assertEq(task().pending, 1, "one is left");
        vm.assertEq(task().head, first, "head");
        post(2, "d", 15, 0);
        advance(WINDOW + 1_000);
        vm.assertEq(finalize(), 2, "final");
        vm.assertEq(task().root, "d", "root");
        vm.assertEq(task().owed, 15, "owed");
    }

    function test_only_the_arbiter_cancels() external {
        post(1, "a", 10, 0);
        PostedSettlement[] memory list_ = pending();
        expectError(
            abi.encodeWithSelector(IMarketErrors.Unauthorized.selector, coordinator, arbiter)
        );
        vm.prank(coordinator);
        market.cancel(TASK, heads[TASK][0], list_);
    }

    function test_the_window_closes_after_its_last_moment() external {
        post(1, "a", 10, 0);
        PostedSettlement[] memory list_ = pending();
        bytes32 before = heads[TASK][0];
        advance(WINDOW + 1_000);
        expectError(abi.encodeWithSelector(IMarketErrors.WindowClosed.selector, list_[0].finalAt));
        vm.prank(arbiter);
        market.cancel(TASK, before, list_);
        advance(0);
        vm.warp(block.timestamp - 1);
        vm.prank(arbiter);
        market.cancel(TASK, before, list_);
        vm.assertEq(task().pending, 0, "cancelled in the last moment");
    }

    function test_one_millisecond_after_a_window_or_the_end_of_a_task_is_too_late() external {
        Terms memory t = terms("odd");
        t.challengeMs = 999;
        t.expires = market.clock() + 999;
        openTask(t);
        Settlement memory s = settlement(1, "root", 10, 0);
        s.task = "odd";
        post(s);
        advance(1_000);
        PostedSettlement[] memory gone = list("odd", 0, 1);
        bytes32 before = heads["odd"][0];
        expectError(abi.encodeWithSelector(IMarketErrors.WindowClosed.selector, gone[0].finalAt));
        vm.prank(arbiter);
        market.cancel("odd", before, gone);
        s.round = 2;
        LastSettlement memory previous = last("odd");
        expectInvalidSettlement(2, "the task has expired");
        vm.prank(coordinator);
        market.post(s, previous);
        vm.assertEq(market.finalize("odd", gone), 1, "final in that millisecond");
    }

    function test_a_final_settlement_cannot_be_cancelled() external {
        post(1, "a", 10, 0);
        PostedSettlement[] memory list_ = pending();
        bytes32 before = heads[TASK][0];
        advance(WINDOW + 1_000);
        finalize();
        expectError(abi.encodeWithSelector(IMarketErrors.WindowClosed.selector, list_[0].finalAt));
        vm.prank(arbiter);
        market.cancel(TASK, before, list_);
    }

    function test_empty_and_unknown_lists_cannot_be_cancelled() external {
        post(1, "a", 10, 0);
        PostedSettlement[] memory none;
        PostedSettlement[] memory list_ = pending();
        bytes32 before = heads[TASK][0];
        vm.startPrank(arbiter);
        vm.expectPartialRevert(IMarketErrors.NotFound.selector);
        market.cancel(TASK, before, none);
        expectError(abi.encodeWithSelector(IMarketErrors.StaleHead.selector, task().head));
        market.cancel(TASK, "elsewhere", list_);
    }

    function checkpointHead() private {
        vm.prank(arbiter);
        market.checkpointHead(TASK);
    }

    function test_only_the_arbiter_checkpoints_the_head() external {
        expectError(
            abi.encodeWithSelector(IMarketErrors.Unauthorized.selector, coordinator, arbiter)
        );
        vm.prank(coordinator);
        market.checkpointHead(TASK);
        expectError(abi.encodeWithSelector(IMarketErrors.UnknownTask.selector, bytes32("other")));
        market.checkpointHead("other");
    }

    function test_posting_after_a_checkpoint_does_not_prevent_a_cancellation() external {
        post(1, "a", 10, 0);
        post(2, "b", 20, 0);
        PostedSettlement[] memory both = pending();
        bytes32 before = heads[TASK][0];
        checkpointHead();
        for (uint32 round = 3; round < 20; ++round) {
            post(round, bytes32(uint256(round)), 20 + round, 0);
        }
        vm.prank(arbiter);
        market.cancel(TASK, before, both);
        dropPosted(TASK, 0);
        vm.assertEq(task().pending, 0, "all are cancelled");
        vm.assertEq(task().head, before, "head");
        vm.assertEq(task().checkpoint, before, "no checkpoint beyond the head");
        post(1, "c", 5, 0);
        advance(WINDOW + 1_000);
        vm.assertEq(finalize(), 1, "and the task goes on");
    }

    function test_without_a_checkpoint_a_list_is_stale_after_another_post() external {
        post(1, "a", 10, 0);
        PostedSettlement[] memory first = pending();
        post(2, "b", 20, 0);
        expectError(abi.encodeWithSelector(IMarketErrors.StaleHead.selector, task().head));
        vm.prank(arbiter);
        market.cancel(TASK, heads[TASK][0], first);
    }

    function test_a_list_up_to_the_checkpoint_can_be_finalised() external {
        post(1, "a", 10, 0);
        checkpointHead();
        advance(WINDOW + 1_000);
        PostedSettlement[] memory first = pending();
        post(2, "b", 20, 0);
        post(3, "c", 30, 0);
        vm.assertEq(market.finalize(TASK, first), 1, "the first");
        vm.assertEq(task().pending, 2, "two wait");
    }

    /// @dev The checkpoint is before the last final settlement: a list that ends there must not
    /// move the head back.
    function test_an_old_checkpoint_cannot_cancel_a_final_settlement() external {
        post(1, "a", 10, 0);
        checkpointHead();
        PostedSettlement[] memory first = pending();
        bytes32 before = heads[TASK][0];
        advance(WINDOW + 1_000);
        finalize();
        bytes32 finalHead = task().finalHead;
        vm.assertEq(task().checkpoint, finalHead, "the checkpoint is not before the final head");
        // Not even with a clock that runs backwards.
        vm.warp(START);
        expectError(abi.encodeWithSelector(IMarketErrors.WindowClosed.selector, first[0].finalAt));
        vm.prank(arbiter);
        market.cancel(TASK, before, first);
    }
}
