// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarketErrors} from "../src/interfaces/IMarketErrors.sol";
import {PostedSettlement, SlashOrder, Terms} from "../src/interfaces/Types.sol";
import {MarketTest} from "./MarketTest.sol";

/// @title Stakes, pledges and slashing.
contract StakesTest is MarketTest {
    function setUp() public override {
        super.setUp();
        openTask();
    }

    function stake(uint256 amount) private {
        vm.prank(ada);
        market.stake(uint128(amount));
    }

    function pledge(bytes32 id) private {
        vm.prank(ada);
        market.pledge(id);
    }

    function unstake() private {
        vm.prank(ada);
        market.unstake();
    }

    function withdraw() private returns (uint128) {
        vm.prank(ada);
        return market.withdrawStake();
    }

    function slash(bool ofStake, uint256 amount) private returns (uint128) {
        vm.prank(arbiter);
        return market.slash(slashOrder(ada, ofStake, amount));
    }

    function test_a_stake_must_be_positive_and_within_the_balance() external {
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidArgument.selector, "a stake of 0"));
        stake(0);
        bytes memory expected = abi.encodeWithSelector(
            IMarketErrors.Insufficient.selector, ada, 10_000 * FLN, 10_001 * FLN
        );
        expectError(expected);
        stake(10_001 * FLN);
        stake(40 * FLN);
        stake(10 * FLN);
        vm.assertEq(market.stakeOf(ada).amount, 50 * FLN, "stakes add up");
    }

    function test_a_pledge_requires_a_sufficient_stake() external {
        stake(50 * FLN - 1);
        expectError(
            abi.encodeWithSelector(IMarketErrors.TooSmall.selector, 50 * FLN - 1, 50 * FLN)
        );
        pledge(TASK);
        stake(1);
        pledge(TASK);
        vm.assertTrue(market.pledged(TASK, ada), "pledged");
        pledge(TASK);
        vm.assertEq(market.pledgesOf(ada).length, 1, "pledging is idempotent");
    }

    function test_a_pledge_requires_a_stake_even_if_stake_min_is_zero() external {
        Terms memory t = terms("free");
        t.stakeMin = 0;
        openTask(t);
        expectError(abi.encodeWithSelector(IMarketErrors.TooSmall.selector, 0, 1));
        pledge("free");
    }

    function test_a_closed_task_accepts_no_pledge() external {
        stake(50 * FLN);
        closeAnnounced(TASK);
        expectError(abi.encodeWithSelector(IMarketErrors.TaskClosed.selector, TASK));
        pledge(TASK);
    }

    function test_a_stake_is_pledged_to_at_most_256_open_tasks() external {
        stake(50 * FLN);
        Terms memory t = terms(TASK);
        t.data = 1e15;
        t.infrastructure = 0;
        for (uint256 i = 0; i < 257; ++i) {
            t.task = bytes32(i + 1);
            openTask(t);
            if (i < 256) pledge(t.task);
        }
        expectError(
            abi.encodeWithSelector(
                IMarketErrors.LimitExceeded.selector, "256 open tasks for one stake"
            )
        );
        pledge(t.task);
        closeAnnounced(bytes32(uint256(7)));
        vm.assertTrue(market.pledged(bytes32(uint256(7)), ada), "until the next pledge");
        pledge(t.task);
        vm.assertFalse(market.pledged(bytes32(uint256(7)), ada), "dropped by the next pledge");
        vm.assertEq(market.pledgesOf(ada).length, 256, "in its place");
        unstake();
        vm.assertEq(market.stakeOf(ada).release, market.clock() + DELAY, "256 iterations");
    }

    function test_a_stake_is_at_risk_for_the_longest_delay_of_its_open_tasks() external {
        stake(50 * FLN);
        Terms memory t = terms("slow");
        t.unbondMs = 3 * DELAY;
        openTask(t);
        t.task = "slower";
        t.unbondMs = 9 * DELAY;
        openTask(t);
        pledge(TASK);
        pledge("slow");
        pledge("slower");
        closeAnnounced("slower");
        unstake();
        uint64 release = market.clock() + 3 * DELAY;
        vm.assertEq(market.stakeOf(ada).release, release, "the longest that is open");
        advance(1_000);
        unstake();
        vm.assertEq(market.stakeOf(ada).release, release, "unstaking is idempotent");
        vm.warp(release / 1_000 - 1);
        expectError(
            abi.encodeWithSelector(IMarketErrors.TooEarly.selector, release, release - 1_000)
        );
        withdraw();
        vm.warp(release / 1_000);
        vm.assertEq(withdraw(), 50 * FLN, "all of it");
        vm.assertEq(token.balanceOf(ada), 10_000 * FLN, "in the wallet");
        vm.assertFalse(market.pledged(TASK, ada), "its pledges ended");
        stake(50 * FLN);
        vm.assertFalse(market.pledged(TASK, ada), "and do not come back");
    }

    function test_a_stake_is_not_returned_one_millisecond_early() external {
        stake(50 * FLN);
        Terms memory t = terms("odd");
        t.unbondMs = 1_001;
        openTask(t);
        pledge("odd");
        unstake();
        advance(1_000);
        uint64 current = market.clock();
        expectError(abi.encodeWithSelector(IMarketErrors.TooEarly.selector, current + 1, current));
        withdraw();
        advance(1_000);
        vm.assertEq(withdraw(), 50 * FLN, "in the second after it");
    }

    function test_a_withdrawal_requires_a_stake_and_unstaking() external {
        expectError(abi.encodeWithSelector(IMarketErrors.NotFound.selector, "no stake"));
        unstake();
        expectError(abi.encodeWithSelector(IMarketErrors.NotFound.selector, "no stake"));
        withdraw();
        stake(1);
        vm.expectPartialRevert(IMarketErrors.NotFound.selector);
        withdraw();
    }

    function test_a_stake_and_a_pledge_cancel_the_unstaking() external {
        stake(50 * FLN);
        unstake();
        stake(1);
        vm.assertEq(market.stakeOf(ada).release, 0, "staked more");
        unstake();
        pledge(TASK);
        vm.assertEq(market.stakeOf(ada).release, 0, "pledged");
        unstake();
        uint64 release = market.stakeOf(ada).release;
        pledge(TASK);
        vm.assertEq(market.stakeOf(ada).release, release, "pledged already");
    }

    // --------------------------------------------------------------------------------------- slash

    function test_only_the_arbiter_slashes_and_only_in_an_open_task() external {
        bond(ada, 10 * FLN);
        expectError(
            abi.encodeWithSelector(IMarketErrors.Unauthorized.selector, coordinator, arbiter)
        );
        vm.prank(coordinator);
        market.slash(slashOrder(ada, false, 1));
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidArgument.selector, "a slash of 0"));
        slash(false, 0);
        closeAnnounced(TASK);
        expectError(abi.encodeWithSelector(IMarketErrors.TaskClosed.selector, TASK));
        slash(false, 1);
    }

    function test_a_slash_moves_at_most_the_bond_to_the_treasury() external {
        bond(ada, 10 * FLN);
        uint256 before = token.balanceOf(arbiter) + token.balanceOf(buyer);
        vm.assertEq(slash(false, 4 * FLN), 4 * FLN, "a part");
        vm.assertEq(slash(false, 400 * FLN), 6 * FLN, "the rest");
        expectError(
            abi.encodeWithSelector(IMarketErrors.NotFound.selector, "nothing is left to slash")
        );
        slash(false, 1);
        vm.assertEq(market.treasury(), 10 * FLN, "treasury");
        vm.assertEq(token.balanceOf(arbiter) + token.balanceOf(buyer), before, "no wallet gains");
    }

    function test_slashes_of_one_account_take_at_most_bond_min() external {
        bond(ada, 25 * FLN);
        vm.assertEq(slash(false, 4 * FLN), 4 * FLN, "a part");
        vm.assertEq(slash(false, 400 * FLN), 6 * FLN, "bondMin in total");
        vm.assertEq(market.slashedBondOf(TASK, ada), 10 * FLN, "slashed");
        bytes memory nothing =
            abi.encodeWithSelector(IMarketErrors.NotFound.selector, "nothing is left to slash");
        expectError(nothing);
        slash(false, 1);
        vm.assertEq(market.bondOf(TASK, ada).amount, 15 * FLN, "the rest stays");
        // Another bond in the same task has no new limit.
        vm.prank(ada);
        market.unbond(TASK);
        vm.warp(block.timestamp + DELAY / 1_000);
        vm.prank(ada);
        market.withdrawBond(TASK);
        bond(ada, 25 * FLN);
        expectError(nothing);
        slash(false, 1);
    }

    function test_an_unbonding_bond_can_still_be_slashed() external {
        bond(ada, 10 * FLN);
        vm.prank(ada);
        market.unbond(TASK);
        vm.assertEq(slash(false, 10 * FLN), 10 * FLN, "taken");
        vm.assertTrue(market.bondOf(TASK, ada).release != 0, "the release stays");
    }

    function test_a_stake_is_slashed_only_by_arbiters_of_pledged_tasks() external {
        stake(80 * FLN);
        expectError(
            abi.encodeWithSelector(IMarketErrors.NotFound.selector, "no stake pledged to this task")
        );
        slash(true, 1);
        pledge(TASK);
        vm.assertEq(slash(true, 20 * FLN), 20 * FLN, "a part");
        vm.assertEq(market.slashedOf(TASK, ada), 20 * FLN, "of this pledge");
        vm.assertEq(slash(true, 80 * FLN), 30 * FLN, "no more than stakeMin in total");
        vm.assertFalse(market.pledged(TASK, ada), "the pledge is used up");
        vm.assertEq(market.stakeOf(ada).amount, 30 * FLN, "stake");
        expectError(abi.encodeWithSelector(IMarketErrors.TooSmall.selector, 30 * FLN, 50 * FLN));
        pledge(TASK);
        stake(20 * FLN);
        pledge(TASK);
        vm.assertEq(slash(true, 80 * FLN), 50 * FLN, "a new pledge, a new limit");
    }

    function test_a_pledge_with_zero_stake_min_cannot_be_slashed() external {
        Terms memory t = terms("free");
        t.stakeMin = 0;
        openTask(t);
        stake(1);
        pledge("free");
        SlashOrder memory order = slashOrder(ada, true, 1);
        order.task = "free";
        expectError(
            abi.encodeWithSelector(IMarketErrors.NotFound.selector, "nothing is left to slash")
        );
        vm.prank(arbiter);
        market.slash(order);
        vm.assertTrue(market.pledged("free", ada), "a expected changes nothing");
    }
}
