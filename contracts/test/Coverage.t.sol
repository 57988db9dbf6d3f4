// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarketErrors} from "../src/interfaces/IMarketErrors.sol";
import {
    LastSettlement, PostedSettlement, Settlement, Terms
} from "../src/interfaces/Types.sol";
import {MarketTest} from "./MarketTest.sol";

/// @title The coordinator's bond: it covers the pay that is posted and not final.
contract CoverageTest is MarketTest {
    function setUp() public override {
        super.setUp();
        openTask();
    }

    /// @dev A post that must revert for the lack of a bond.
    function postUncovered(
        uint32 round,
        uint256 data,
        uint256 infrastructure,
        uint256 offered,
        uint256 smallest
    ) private {
        Settlement memory s = settlement(round, "root", data, infrastructure);
        LastSettlement memory previous = last(TASK);
        expectError(
            abi.encodeWithSelector(IMarketErrors.TooSmall.selector, offered, smallest)
        );
        vm.prank(coordinator);
        market.post(s, previous);
    }

    function slash(uint256 amount) private returns (uint128) {
        vm.prank(arbiter);
        return market.slash(slashOrder(coordinator, false, amount));
    }

    function unbond() private {
        vm.prank(coordinator);
        market.unbond(TASK);
    }

    function withdraw() private returns (uint128) {
        vm.prank(coordinator);
        return market.withdrawBond(TASK);
    }

    function close() private {
        PostedSettlement[] memory all = pending();
        vm.prank(coordinator);
        market.close(TASK, all);
    }

    function test_a_post_is_covered_to_the_unit() external {
        bond(ada, 100 * FLN);
        postUncovered(1, 30, 10, 0, 40);
        // Below the minimum of participants.
        bond(coordinator, 39);
        postUncovered(1, 30, 10, 39, 40);
        bond(coordinator, 1);
        vm.assertEq(market.coveredOf(TASK), 40, "covered");
        post(1, "a", 30, 10);
        postUncovered(2, 30, 11, 40, 41);
        advance(WINDOW + 1_000);
        postUncovered(2, 31, 10, 40, 41);
        finalize();
        vm.assertEq(market.coveredOf(TASK), 80, "what is final needs no cover");
        postUncovered(2, 71, 10, 40, 41);
        post(2, "b", 70, 10);
        vm.assertEq(market.bondOf(TASK, coordinator).amount, 40, "posts take nothing");
        cancel(1);
        post(2, "c", 70, 10);
    }

    function test_a_bond_requested_back_covers_nothing_and_stays_until_the_close() external {
        bond(coordinator, 100);
        post(1, "a", 10, 0);
        unbond();
        postUncovered(2, 11, 0, 0, 11);
        advance(10 * WINDOW);
        finalize();
        vm.assertEq(market.coveredOf(TASK), 10, "only what is final");
        expectError(
            abi.encodeWithSelector(
                IMarketErrors.NotFound.selector,
                "the task is open: the coordinator's bond returns after the close"
            )
        );
        withdraw();
        slash(1);
        vm.assertEq(market.coveredOf(TASK), 10, "a slash does not revive it");
        bond(coordinator, 0);
        vm.assertEq(market.coveredOf(TASK), 109, "cancelled");
    }

    function test_a_slash_and_a_debit_lower_the_cover() external {
        bond(coordinator, 100 * FLN);
        slash(40 * FLN);
        vm.assertEq(market.coveredOf(TASK), 60 * FLN, "slashed");
        ada = coordinator;
        settle(1, 0, 5 * FLN, 1);
        claim(adasClaim(0, 5 * FLN, 1));
        vm.assertEq(market.coveredOf(TASK), 55 * FLN + 1, "debited");
    }

    function test_a_closed_task_returns_the_bond_after_two_windows_unless_slashed() external {
        bond(ada, 10 * FLN);
        bond(coordinator, 100);
        post(20, "a", 10, 0);
        uint64 posted = market.clock();
        advance(WINDOW + 1_000);
        close();
        vm.assertEq(slash(30), 30, "after the close");
        expectError(abi.encodeWithSelector(IMarketErrors.TaskClosed.selector, TASK));
        vm.prank(arbiter);
        market.slash(slashOrder(ada, false, 1));
        expectError(abi.encodeWithSelector(IMarketErrors.TaskClosed.selector, TASK));
        vm.prank(arbiter);
        market.slash(slashOrder(coordinator, true, 1));
        vm.warp((posted + 2 * WINDOW) / 1_000 - 1);
        uint64 current = market.clock();
        expectError(
            abi.encodeWithSelector(
                IMarketErrors.TooEarly.selector, posted + 2 * WINDOW, current
            )
        );
        withdraw();
        advance(1_000);
        vm.assertEq(slash(20), 20, "until it is withdrawn");
        vm.assertEq(withdraw(), 50, "the rest");
        expectError(
            abi.encodeWithSelector(IMarketErrors.NotFound.selector, "nothing is left to slash")
        );
        slash(1);
    }

    function test_a_coordinator_that_is_the_arbiter_needs_no_bond() external {
        Terms memory t = terms("trusted");
        t.arbiter = coordinator;
        openTask(t);
        Settlement memory s = settlement(1, "root", 50 * FLN, 10 * FLN);
        s.task = "trusted";
        LastSettlement memory previous = last("trusted");
        vm.startPrank(coordinator);
        market.post(s, previous);
        vm.assertEq(market.coveredOf("trusted"), type(uint96).max, "no limit");
        expectError(abi.encodeWithSelector(IMarketErrors.TooSmall.selector, 1, 10 * FLN));
        market.bond("trusted", 1);
        market.bond("trusted", uint128(10 * FLN));
        market.unbond("trusted");
        advance(2 * WINDOW + DELAY);
        vm.assertEq(market.withdrawBond("trusted"), 10 * FLN, "in an open task");
        vm.assertEq(market.coveredOf("trusted"), type(uint96).max, "still no limit");
        vm.stopPrank();
    }

    function testFuzz_the_cover_is_what_is_final_and_the_bond(uint256 seed) external {
        uint256 total = 0;
        uint256 paid = 0;
        for (uint32 round = 1; round <= 12; ++round) {
            seed = uint256(keccak256(abi.encode(seed)));
            bond(coordinator, seed % (40 * FLN));
            if ((seed >> 8) % 4 == 0) slash(1 + (seed >> 16) % FLN);
            uint256 held = market.bondOf(TASK, coordinator).amount;
            vm.assertEq(market.coveredOf(TASK), paid + held, "cover");
            uint256 more = (seed >> 24) % (50 * FLN);
            if (total + more - paid > held) {
                postUncovered(round, total + more, 0, held, total + more - paid);
                more = 0;
            }
            total += more;
            post(round, "root", total, 0);
            if ((seed >> 32) % 3 != 0) continue;
            advance(WINDOW + 1_000);
            finalize();
            paid = total;
        }
    }
}
