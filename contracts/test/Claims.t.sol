// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarketErrors} from "../src/interfaces/IMarketErrors.sol";
import {Claim, PostedSettlement, Terms} from "../src/interfaces/Types.sol";
import {MarketTest} from "./MarketTest.sol";
import {Tree} from "./Tree.sol";

/// @title Claims of pay and debits by Merkle proof.
contract ClaimsTest is MarketTest {
    function setUp() public override {
        super.setUp();
        openTask();
    }

    function test_a_claim_pays_its_leafs_address_for_any_sender() external {
        settle(1, 30 * FLN, 0, 20 * FLN);
        Claim memory c = adasClaim(30 * FLN, 0, 20 * FLN);
        uint256 adaBefore = token.balanceOf(ada);
        uint256 strangerBefore = token.balanceOf(stranger);
        vm.prank(stranger);
        vm.assertEq(claim(c), 30 * FLN, "paid");
        vm.assertEq(token.balanceOf(ada) - adaBefore, 30 * FLN, "to Ada");
        vm.assertEq(token.balanceOf(stranger), strangerBefore, "and not to the front-runner");
        vm.assertEq(task().owed, 20 * FLN, "Ben is owed the rest");
    }

    function test_a_claim_is_paid_once_and_covers_every_round() external {
        settle(1, 30 * FLN, 0, 20 * FLN);
        claim(adasClaim(30 * FLN, 0, 20 * FLN));
        Claim memory again = adasClaim(30 * FLN, 0, 20 * FLN);
        expectError(abi.encodeWithSelector(IMarketErrors.NothingToClaim.selector));
        claim(again);
        settle(2, 50 * FLN, 0, 25 * FLN);
        settle(3, 70 * FLN, 0, 30 * FLN);
        vm.assertEq(claim(adasClaim(70 * FLN, 0, 30 * FLN)), 40 * FLN, "two rounds at once");
        vm.assertEq(claim(bensClaim(70 * FLN, 0, 30 * FLN)), 30 * FLN, "three rounds at once");
        vm.assertEq(task().owed, 0, "nothing is owed");
    }

    function test_another_amount_account_or_proof_is_refused() external {
        settle(1, 30 * FLN, 0, 20 * FLN);
        Claim memory c = adasClaim(30 * FLN, 0, 20 * FLN);
        bytes memory bad = abi.encodeWithSelector(IMarketErrors.InvalidProof.selector);
        c.paid += 1;
        expectError(bad);
        claim(c);
        c.paid -= 1;
        c.debited = 1;
        expectError(bad);
        claim(c);
        c.debited = 0;
        c.account = stranger;
        expectError(bad);
        claim(c);
        c.account = ada;
        c.proof[0] = "x";
        expectError(bad);
        claim(c);
        c.proof = new bytes32[](65);
        expectError(bad);
        claim(c);
        c.task = "other";
        expectError(abi.encodeWithSelector(IMarketErrors.UnknownTask.selector, c.task));
        claim(c);
    }

    function test_a_claim_requires_a_final_root() external {
        bytes32[] memory heap = tree(30, 0, 20);
        post(1, heap[0], 50, 0);
        advance(WINDOW);
        finalize();
        Claim memory c = adasClaim(30, 0, 20);
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidProof.selector));
        claim(c);
        advance(1_000);
        finalize();
        vm.assertEq(claim(c), 30, "after it");
    }

    function test_a_proof_does_not_verify_in_another_task() external {
        settle(1, 30 * FLN, 0, 20 * FLN);
        Terms memory t = terms("other");
        openTask(t);
        Claim memory c = adasClaim(30 * FLN, 0, 20 * FLN);
        c.task = "other";
        expectError(abi.encodeWithSelector(IMarketErrors.InvalidProof.selector));
        claim(c);
    }

    function test_a_root_beyond_its_totals_cannot_reach_other_funds() external {
        bytes32[] memory heap = tree(100, 0, 20);
        post(1, heap[0], 50, 0);
        advance(WINDOW + 1_000);
        finalize();
        Claim memory c = adasClaim(100, 0, 20);
        expectInvalidSettlement(1, "the pay exceeds the owed amount");
        claim(c);
        vm.assertEq(claim(bensClaim(100, 0, 20)), 20, "the owed amount is paid");
    }

    function test_a_total_beyond_128_bits_is_refused() external {
        uint256 huge = uint256(type(uint128).max) + 2;
        bytes32[] memory heap = tree(huge, 0, 20);
        post(1, heap[0], 50, 0);
        advance(WINDOW + 1_000);
        finalize();
        Claim memory c = adasClaim(huge, 0, 20);
        expectInvalidSettlement(1, "the pay exceeds the owed amount");
        claim(c);
    }

    function test_totals_that_decrease_are_refused() external {
        bond(ada, 10 * FLN);
        settle(1, 30 * FLN, 2 * FLN, 20 * FLN);
        claim(adasClaim(30 * FLN, 2 * FLN, 20 * FLN));
        bytes32[] memory heap = tree(29 * FLN, 2 * FLN, 30 * FLN);
        post(2, heap[0], 59 * FLN, 0);
        advance(WINDOW + 1_000);
        finalize();
        Claim memory c = adasClaim(29 * FLN, 2 * FLN, 30 * FLN);
        expectInvalidSettlement(2, "the pay decreases");
        claim(c);
        heap = tree(31 * FLN, 1 * FLN, 30 * FLN);
        post(3, heap[0], 61 * FLN, 0);
        advance(WINDOW + 1_000);
        finalize();
        c = adasClaim(31 * FLN, 1 * FLN, 30 * FLN);
        expectInvalidSettlement(3, "the debits decrease");
        claim(c);
    }

    // -------------------------------------------------------------------------------------- debits

    function test_a_debit_goes_from_the_bond_to_the_treasury() external {
        bond(ada, 10 * FLN);
        settle(1, 0, 3 * FLN, 20 * FLN);
        uint256 before = token.balanceOf(ada);
        vm.assertEq(claim(adasClaim(0, 3 * FLN, 20 * FLN)), 0, "nothing is paid");
        vm.assertEq(market.bondOf(TASK, ada).amount, 7 * FLN, "bond");
        vm.assertEq(market.treasury(), 3 * FLN, "treasury");
        vm.assertEq(token.balanceOf(ada), before, "wallet");
        Claim memory again = adasClaim(0, 3 * FLN, 20 * FLN);
        expectError(abi.encodeWithSelector(IMarketErrors.NothingToClaim.selector));
        claim(again);
    }

    function test_one_claim_pays_and_debits() external {
        bond(ada, 10 * FLN);
        settle(1, 30 * FLN, 3 * FLN, 20 * FLN);
        vm.assertEq(claim(adasClaim(30 * FLN, 3 * FLN, 20 * FLN)), 30 * FLN, "paid in full");
        vm.assertEq(market.bondOf(TASK, ada).amount, 7 * FLN, "debited");
        (uint128 paid, uint128 debited) = market.claimed(TASK, ada);
        vm.assertEq(paid, 30 * FLN, "paid so far");
        vm.assertEq(debited, 3 * FLN, "debited so far");
    }

    function test_a_debit_beyond_the_bond_is_not_carried_over() external {
        bond(ada, 10 * FLN);
        vm.prank(arbiter);
        market.slash(slashOrder(ada, false, 8 * FLN));
        settle(1, 0, 5 * FLN, 20 * FLN);
        claim(adasClaim(0, 5 * FLN, 20 * FLN));
        vm.assertEq(market.bondOf(TASK, ada).amount, 0, "the bond is used up");
        vm.assertEq(market.treasury(), 10 * FLN, "and no more was taken");
        bond(ada, 10 * FLN);
        settle(2, 0, 6 * FLN, 20 * FLN);
        claim(adasClaim(0, 6 * FLN, 20 * FLN));
        vm.assertEq(market.bondOf(TASK, ada).amount, 9 * FLN, "only the new debit");
    }

    function test_debits_are_limited_to_debit_max_per_round() external {
        bond(ada, 100 * FLN);
        settle(1, 0, 5 * FLN + 1, 20 * FLN);
        Claim memory c = adasClaim(0, 5 * FLN + 1, 20 * FLN);
        expectInvalidSettlement(1, "the debits exceed debitMax for each final settlement");
        claim(c);
        settle(2, 0, 10 * FLN, 20 * FLN);
        claim(adasClaim(0, 10 * FLN, 20 * FLN));
        vm.assertEq(market.bondOf(TASK, ada).amount, 90 * FLN, "5 FLN for each of 2 rounds");
    }

    function test_a_debit_can_be_proven_after_the_task_was_closed() external {
        bond(ada, 10 * FLN);
        settle(20, 0, 3 * FLN, 20 * FLN);
        PostedSettlement[] memory none = pending();
        vm.prank(coordinator);
        market.close(TASK, none);
        claim(adasClaim(0, 3 * FLN, 20 * FLN));
        vm.assertEq(market.bondOf(TASK, ada).amount, 7 * FLN, "bond");
    }

    // ---------------------------------------------------------------------------------------- many

    function test_claim_many_equals_single_claims() external {
        settle(1, 30 * FLN, 0, 20 * FLN);
        Claim[] memory both = new Claim[](2);
        both[0] = adasClaim(30 * FLN, 0, 20 * FLN);
        both[1] = bensClaim(30 * FLN, 0, 20 * FLN);
        vm.prank(stranger);
        uint128[] memory paid = market.claimMany(both);
        vm.assertEq(paid[0], 30 * FLN, "Ada");
        vm.assertEq(paid[1], 20 * FLN, "Ben");
        both[1] = both[0];
        settle(2, 31 * FLN, 0, 20 * FLN);
        both[0] = adasClaim(31 * FLN, 0, 20 * FLN);
        both[1] = both[0];
        expectError(abi.encodeWithSelector(IMarketErrors.NothingToClaim.selector));
        market.claimMany(both);
        both = new Claim[](257);
        expectError(
            abi.encodeWithSelector(IMarketErrors.LimitExceeded.selector, "256 claims in one call")
        );
        market.claimMany(both);
    }

    // -------------------------------------------------------------------------------------- fuzzed

    function testFuzz_claims_in_any_order_pay_exactly_what_was_posted(
        uint64[8] memory pay,
        uint256 order
    ) external {
        bytes32[] memory leaves = new bytes32[](8);
        uint256 total = 0;
        for (uint160 i = 0; i < 8; ++i) {
            leaves[i] = Tree.leaf(address(0x1000 + i), pay[i], 0);
            total += pay[i];
        }
        bytes32[] memory heap = Tree.nodes(leaves);
        post(20, heap[0], total, 0);
        advance(WINDOW + 1_000);
        finalize();
        for (uint256 k = 0; k < 8; ++k) {
            uint256 i = (k + order % 8) % 8;
            address account = address(uint160(0x1000 + i));
            bytes32[] memory proof = Tree.proof(heap, Tree.leaf(account, pay[i], 0));
            if (pay[i] == 0) {
                expectError(abi.encodeWithSelector(IMarketErrors.NothingToClaim.selector));
            }
            claim(Claim(TASK, account, pay[i], 0, proof));
            vm.assertEq(token.balanceOf(account), pay[i], "exactly its own");
        }
        vm.assertEq(task().owed, 0, "to the last unit");
    }

    function testFuzz_a_debit_takes_the_lesser_of_bond_and_debt(uint128 held, uint128 debt)
        external
    {
        held = uint128(10 * FLN + held % (90 * FLN));
        debt = uint128(debt % (5 * FLN));
        bond(ada, held);
        vm.prank(arbiter);
        uint256 slashed = market.slash(slashOrder(ada, false, held - uint128(held % (7 * FLN))));
        vm.assertLe(slashed, 10 * FLN, "at most bondMin");
        settle(1, 1, debt, 0);
        claim(adasClaim(1, debt, 0));
        uint256 left = held - slashed;
        uint256 taken = debt < left ? debt : left;
        vm.assertEq(market.bondOf(TASK, ada).amount, left - taken, "bond");
        vm.assertEq(market.treasury(), slashed + taken, "treasury");
    }
}
