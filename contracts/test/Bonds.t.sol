// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarketErrors} from "../src/interfaces/IMarketErrors.sol";
import {PostedSettlement, Terms} from "../src/interfaces/Types.sol";
import {MarketTest} from "./MarketTest.sol";

/// @title Bonds of participants: deposit, unbonding and withdrawal.
contract BondsTest is MarketTest {
    function setUp() public override {
        super.setUp();
        openTask();
    }

    function withdraw(address account) private returns (uint128) {
        vm.prank(account);
        return market.withdrawBond(TASK);
    }

    function unbond(address account) private {
        vm.prank(account);
        market.unbond(TASK);
    }

    function close() private {
        PostedSettlement[] memory all = pending();
        vm.prank(coordinator);
        market.close(TASK, all);
    }

    function expectTooEarly(uint64 moment) private {
        uint64 current = market.clock();
        expectError(abi.encodeWithSelector(IMarketErrors.TooEarly.selector, moment, current));
    }

    function test_a_bond_below_the_minimum_is_refused() external {
        expectError(
            abi.encodeWithSelector(IMarketErrors.TooSmall.selector, 10 * FLN - 1, 10 * FLN)
        );
        bond(ada, 10 * FLN - 1);
        bond(ada, 10 * FLN);
        bond(ada, 1);
        vm.assertEq(market.bondOf(TASK, ada).amount, 10 * FLN + 1, "bonds add up");
    }

    function test_a_bond_above_the_balance_is_refused() external {
        bytes memory expected = abi.encodeWithSelector(
            IMarketErrors.Insufficient.selector, ada, 10_000 * FLN, 10_000 * FLN + 1
        );
        expectError(expected);
        bond(ada, 10_000 * FLN + 1);
    }

    function test_a_closed_task_accepts_no_bonds() external {
        closeAnnounced(TASK);
        expectError(abi.encodeWithSelector(IMarketErrors.TaskClosed.selector, TASK));
        bond(ada, 10 * FLN);
    }

    function test_unbonding_and_withdrawal_require_a_bond() external {
        expectError(abi.encodeWithSelector(IMarketErrors.NotFound.selector, "no bond"));
        unbond(ada);
        expectError(abi.encodeWithSelector(IMarketErrors.NotFound.selector, "no bond"));
        withdraw(ada);
    }

    function test_a_withdrawal_requires_unbonding_first() external {
        bond(ada, 10 * FLN);
        vm.expectPartialRevert(IMarketErrors.NotFound.selector);
        withdraw(ada);
    }

    function test_a_bond_stays_at_risk_for_the_delay() external {
        bond(ada, 10 * FLN);
        unbond(ada);
        uint64 release = market.clock() + DELAY;
        vm.assertEq(market.bondOf(TASK, ada).release, release, "release");
        advance(10_000);
        unbond(ada);
        vm.assertEq(market.bondOf(TASK, ada).release, release, "unbonding is idempotent");
        advance(DELAY - 11_000);
        expectTooEarly(release);
        withdraw(ada);
        advance(1_000);
        vm.assertEq(withdraw(ada), 10 * FLN, "all of it");
        vm.assertEq(token.balanceOf(ada), 10_000 * FLN, "in the wallet");
        expectError(abi.encodeWithSelector(IMarketErrors.NotFound.selector, "no bond"));
        withdraw(ada);
    }

    function test_a_bond_is_not_returned_one_millisecond_early() external {
        Terms memory t = terms("odd");
        t.unbondMs = 1_001;
        openTask(t);
        vm.startPrank(ada);
        market.bond("odd", uint128(10 * FLN));
        market.unbond("odd");
        advance(1_000);
        expectTooEarly(market.clock() + 1);
        market.withdrawBond("odd");
        advance(1_000);
        vm.assertEq(market.withdrawBond("odd"), 10 * FLN, "in the second after it");
        vm.stopPrank();
    }

    function test_adding_to_a_bond_cancels_the_unbonding() external {
        bond(ada, 10 * FLN);
        unbond(ada);
        bond(ada, 0);
        vm.assertEq(market.bondOf(TASK, ada).release, 0, "unbonding is cancelled");
    }

    /// @dev The release is 50 s after unbonding, the window is 100 s: a settlement posted before
    /// holds the bond for two windows.
    function test_a_settlement_posted_before_the_release_holds_the_bond_for_two_windows() external {
        bond(ada, 10 * FLN);
        advance(5_000);
        post(1, "a", 1, 0);
        uint64 posted = market.clock();
        unbond(ada);
        advance(DELAY);
        expectTooEarly(posted + 2 * WINDOW);
        withdraw(ada);
        advance(2 * WINDOW - DELAY - 1_000);
        expectTooEarly(posted + 2 * WINDOW);
        withdraw(ada);
        advance(1_000);
        withdraw(ada);
    }

    function test_continued_posting_does_not_delay_a_withdrawal() external {
        bond(ada, 10 * FLN);
        unbond(ada);
        uint64 release = market.clock() + DELAY;
        advance(DELAY + 7_000);
        post(1, "a", 1, 0);
        for (uint32 round = 2; round < 20; ++round) {
            expectTooEarly(release + 2 * WINDOW);
            withdraw(ada);
            advance(10_000);
            post(round, "a", 1, 0);
        }
        vm.warp((release + 2 * WINDOW) / 1_000);
        withdraw(ada);
    }

    function test_an_old_settlement_does_not_hold_a_bond_longer_than_the_delay() external {
        post(1, "a", 1, 0);
        advance(10 * WINDOW);
        bond(ada, 10 * FLN);
        unbond(ada);
        uint64 release = market.clock() + DELAY;
        advance(DELAY - 1_000);
        expectTooEarly(release);
        withdraw(ada);
        advance(1_000);
        withdraw(ada);
    }

    function test_a_closed_task_returns_bonds_two_windows_after_its_last_settlement() external {
        bond(ada, 10 * FLN);
        post(20, "a", 1, 0);
        uint64 posted = market.clock();
        advance(WINDOW + 1_000);
        close();
        expectTooEarly(posted + 2 * WINDOW);
        withdraw(ada);
        vm.warp((posted + 2 * WINDOW) / 1_000);
        withdraw(ada);
    }

    function test_a_closed_task_without_settlements_returns_bonds_at_once() external {
        bond(ada, 10 * FLN);
        closeAnnounced(TASK);
        withdraw(ada);
    }

    function testFuzz_a_bond_never_returns_early(uint32 postAt, uint32 askAt, uint32 tryAt)
        external
    {
        postAt %= 400;
        askAt %= 400;
        tryAt %= 800;
        bond(ada, 10 * FLN);
        uint256 begin = block.timestamp;
        if (postAt < askAt) {
            vm.warp(begin + postAt);
            post(1, "a", 1, 0);
        }
        vm.warp(begin + askAt);
        unbond(ada);
        uint256 release = begin + askAt + DELAY / 1_000;
        if (postAt >= askAt) {
            vm.warp(begin + postAt);
            post(1, "a", 1, 0);
        }
        uint256 earliest = (postAt + begin < release ? postAt + begin : release) + 200;
        if (earliest < release) earliest = release;
        uint256 moment = begin + tryAt;
        if (moment < block.timestamp) moment = block.timestamp;
        vm.warp(moment);
        if (moment < earliest) expectTooEarly(uint64(earliest * 1_000));
        withdraw(ada);
    }
}
