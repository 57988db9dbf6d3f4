// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {
    Claim,
    LastSettlement,
    MemberShare,
    PostedSettlement,
    Settlement,
    Terms
} from "../src/interfaces/Types.sol";
import {MarketTest} from "./MarketTest.sol";
import {Tree} from "./Tree.sol";

/// @title Gas costs of the hot paths, each as a separate transaction: 21,000, calldata and cold
/// storage included.
/// @dev `cargo xtask contracts test --mc GasTest -vv` prints the table of README.md.
contract GasTest is MarketTest {
    uint256 private constant POST_MAX = 50_000;
    uint256 private constant FIRST_CLAIM_MAX = 92_800;
    uint256 private constant LATER_CLAIM_MAX = 58_600;
    uint256 private constant MEMBER_MAX = 29_000;
    uint256 private constant LATER_MEMBER_MAX = 12_000;
    uint256 private constant SIX_LEVELS_MAX = 5_000;
    uint256 private constant LEASE_MAX = 500_000;

    address private newcomer = address(0x9E3C0fFEE5551234567890ABCdEf9876543210Fe);
    address private payer;

    event log(string line);

    function row(string memory what, uint256 gas) private {
        emit log(string.concat("| ", what, " | ", vm.toString(gas), " |"));
    }

    /// @dev A call of the market by an account.
    function costOf(address from, bytes memory data) private returns (uint256) {
        vm.prank(from);
        (bool done,) = address(market).call(data);
        require(done, "the measured call reverted");
        return vm.lastCallGas().gasTotalUsed;
    }

    function cost(address to, bytes memory data) private returns (uint256) {
        vm.prank(coordinator);
        (bool done,) = to.call(data);
        require(done, "the measured call reverted");
        return vm.lastCallGas().gasTotalUsed;
    }

    /// @dev The newcomer's total earnings up to a round; all low digits are nonzero.
    function earned(uint256 round) private pure returns (uint256) {
        return round * 1_234_567_890_123_456_789;
    }

    function postCost(uint32 round, uint256 depth) private returns (uint256 gas, Claim memory c) {
        bytes32 leaf = Tree.leaf(newcomer, earned(round), 0);
        (bytes32 root, bytes32[] memory proof) = Tree.path(leaf, depth);
        Settlement memory s = settlement(round, root, 3 * earned(round), earned(round));
        LastSettlement memory previous = last(TASK);
        bytes32 before = task().head;
        gas = cost(address(market), abi.encodeCall(market.post, (s, previous)));
        recordPosted(s, before);
        c = Claim(TASK, newcomer, earned(round), 0, proof);
    }

    function postGas(uint32 round, uint256 depth) private returns (uint256 gas) {
        (gas,) = postCost(round, depth);
    }

    function finalizeCost(uint256 count) private returns (uint256) {
        advance(WINDOW + 1_000);
        PostedSettlement[] memory waiting = pending();
        require(waiting.length == count, "unexpected number of pending settlements");
        return cost(address(market), abi.encodeCall(market.finalize, (TASK, waiting)));
    }

    /// forge-config: default.isolate = true
    function test_posting_cost_does_not_depend_on_the_number_of_participants() external {
        openTask();
        cover(TASK, 1_200 * FLN);
        row("post, the first of a task", postGas(1, 4));
        uint256 ten = postGas(2, 4);
        uint256 many = postGas(3, 17);
        row("post, 10 participants", ten);
        row("post, 100,000 participants", many);
        vm.assertLe(
            ten > many ? ten - many : many - ten, 100, "equal except for zero bytes in hashes"
        );
        row("finalize, 3 settlements, the first of a task", finalizeCost(3));
        for (uint32 round = 4; round < 12; ++round) {
            uint256 gas = postGas(round, 17);
            vm.assertLe(gas, POST_MAX, "one settlement");
        }
        row("finalize, 8 settlements", finalizeCost(8));
        postCost(12, 10);
        row("finalize, 1 settlement", finalizeCost(1));
    }

    /// forge-config: default.isolate = true
    function test_claim_cost_does_not_depend_on_the_number_of_rounds() external {
        uint256[4] memory small = claimCosts(10);
        uint256[4] memory large = claimCosts(16);
        row("claim, 1,024 accounts, first, new holder", small[0]);
        row("claim, 1,024 accounts, later", small[1]);
        row("claim, 1,024 accounts, later, 5 rounds at once", small[2]);
        row("claim, 1,024 accounts, later, with a debit", small[3]);
        row("claim, 65,536 accounts, first, new holder", large[0]);
        row("claim, 65,536 accounts, later", large[1]);
        vm.assertLe(small[0], FIRST_CLAIM_MAX, "first");
        vm.assertLe(small[1], LATER_CLAIM_MAX, "later");
        vm.assertLe(small[2], small[1] + 200, "independent of the number of rounds");
        vm.assertLe(large[0], small[0] + SIX_LEVELS_MAX, "64 times the accounts");
        vm.assertLe(large[1], small[1] + SIX_LEVELS_MAX, "64 times the accounts");
    }

    function claimCosts(uint256 depth) private returns (uint256[4] memory gas) {
        uint256 snapshot = vm.snapshotState();
        openTask();
        cover(TASK, 1_200 * FLN);
        for (uint32 round = 1; round <= 7; ++round) {
            (, Claim memory c) = postCost(round, depth);
            finalizeCost(1);
            if (round == 1) gas[0] = cost(address(market), claimCall(c));
            if (round == 2) gas[1] = cost(address(market), claimCall(c));
            if (round == 7) gas[2] = cost(address(market), claimCall(c));
        }
        gas[3] = debitCost(depth);
        delete activeSettlements[TASK];
        delete heads[TASK];
        vm.revertToState(snapshot);
    }

    /// forge-config: default.isolate = true
    function test_a_split_adds_the_payment_of_each_member() external {
        uint256[2] memory alone = splitCosts(1);
        uint256[2] memory three = splitCosts(3);
        uint256[2] memory most = splitCosts(64);
        row("claim, 1,024 accounts, first, split among 3 new holders", three[0]);
        row("claim, 1,024 accounts, later, split among 3", three[1]);
        row("claim, 1,024 accounts, first, split among 64 new holders", most[0]);
        row("claim, 1,024 accounts, later, split among 64", most[1]);
        vm.assertLe(most[0], alone[0] + 63 * MEMBER_MAX, "each member");
        vm.assertLe(most[1], alone[1] + 63 * LATER_MEMBER_MAX, "each member, later");
    }

    /// @dev The cost of the first and of the second claim of an account with this split.
    function splitCosts(uint160 count) private returns (uint256[2] memory gas) {
        uint256 snapshot = vm.snapshotState();
        openTask();
        cover(TASK, 1_200 * FLN);
        MemberShare[] memory list = new MemberShare[](count);
        for (uint160 i = 0; i < count; ++i) {
            uint32 share = uint32(i == 0 ? 1_000_001 - count : 1);
            list[i] = MemberShare(address(0xbEEFbeEF0000000000000001 + i), share);
        }
        vm.prank(newcomer);
        market.setSplit(TASK, list);
        for (uint32 round = 1; round <= 2; ++round) {
            (, Claim memory c) = postCost(round, 10);
            finalizeCost(1);
            gas[round - 1] = cost(address(market), claimCall(c));
        }
        delete activeSettlements[TASK];
        delete heads[TASK];
        vm.revertToState(snapshot);
    }

    function debitCost(uint256 depth) private returns (uint256) {
        fund(newcomer, 100 * FLN);
        bond(newcomer, 20 * FLN);
        bytes32 leaf = Tree.leaf(newcomer, earned(8), FLN);
        (bytes32 root, bytes32[] memory proof) = Tree.path(leaf, depth);
        post(8, root, 3 * earned(8), earned(8));
        finalizeCost(1);
        Claim memory c = Claim(TASK, newcomer, earned(8), FLN, proof);
        return cost(address(market), claimCall(c));
    }

    /// @dev A lease of compute is a task of one round: bids, segments, audits and disputes are off the chain.
    /// forge-config: default.isolate = true
    function test_a_lease_costs_a_few_transactions_and_a_segment_none() external {
        Terms memory lease = terms(TASK);
        (lease.data, lease.infrastructure, lease.rounds) = (1e15, uint128(20 * FLN), 1);
        (lease.perNatMax, lease.floorShare, lease.bondMin, lease.stakeMin) = (0, 0, 0, 0);
        lease.debitMax = uint128(20 * FLN);
        uint256 open = costOf(buyer, abi.encodeCall(market.openTask, (lease)));
        row("lease, open: the escrow", open);
        fund(newcomer, 100 * FLN);
        bytes memory stake = abi.encodeCall(market.bond, (TASK, uint128(20 * FLN)));
        uint256 award = costOf(newcomer, stake);
        row("lease, award: the provider's stake", award);
        row("lease, the coordinator's bond", costOf(coordinator, stake));
        bytes32 leaf = Tree.leaf(newcomer, 9 * FLN, 0);
        (bytes32 root, bytes32[] memory proof) = Tree.path(leaf, 3);
        Settlement memory s = settlement(1, root, 0, 10 * FLN);
        bytes32 before = task().head;
        uint256 settle = cost(address(market), abi.encodeCall(market.post, (s, last(TASK))));
        recordPosted(s, before);
        settle += finalizeCost(1);
        row("lease, settle: post and finalize", settle);
        Claim memory c = Claim(TASK, newcomer, 9 * FLN, 0, proof);
        row("lease, claim of the provider", cost(address(market), claimCall(c)));
        vm.assertLe(open + award + settle, LEASE_MAX, "open, award and settle");
    }

    /// forge-config: default.isolate = true
    function test_cost_of_alternative_payout_designs() external {
        bare();
        oneShot();
        loop(false);
        loop(true);
    }

    function bare() private {
        payer = vm.deployCode("PayoutAlternatives.sol:BareRunningTotals", abi.encode(token));
        token.transfer(payer, 1_000 * FLN);
        for (uint256 round = 1; round <= 2; ++round) {
            bytes32 leaf = keccak256(
                bytes.concat(keccak256(abi.encode(newcomer, earned(round))))
            );
            (bytes32 root, bytes32[] memory proof) = Tree.path(leaf, 10);
            uint256 gas = cost(payer, abi.encodeWithSignature("post(bytes32)", root));
            if (round == 2) row("bare running totals: post", gas);
            gas = cost(
                payer,
                abi.encodeWithSignature(
                    "claim(address,uint256,bytes32[])", newcomer, earned(round), proof
                )
            );
            row(round == 1 ? "bare running totals: first" : "bare running totals: later", gas);
        }
    }

    function oneShot() private {
        for (uint256 round = 1; round <= 2; ++round) {
            address whom = round == 1 ? address(uint160(newcomer) + 1) : newcomer;
            bytes32 leaf = keccak256(
                bytes.concat(keccak256(abi.encode(uint256(7), whom, earned(1))))
            );
            (bytes32 root, bytes32[] memory proof) = Tree.path(leaf, 10);
            payer = vm.deployCode("PayoutAlternatives.sol:OneShot", abi.encode(token, root));
            token.transfer(payer, 1_000 * FLN);
            bytes memory data = abi.encodeWithSignature(
                "claim(uint256,address,uint256,bytes32[])", 7, whom, earned(1), proof
            );
            uint256 gas = cost(payer, data);
            row(round == 1 ? "one-shot distributor: new holder" : "one-shot: existing holder", gas);
        }
    }

    function loop(bool existing) private {
        payer = vm.deployCode("PayoutAlternatives.sol:Loop", abi.encode(token));
        token.transfer(payer, 1_000 * FLN);
        address[] memory accounts = new address[](100);
        uint256[] memory amounts = new uint256[](100);
        for (uint256 i = 0; i < 100; ++i) {
            accounts[i] = address(uint160(uint256(keccak256(abi.encode("loop", i)))));
            amounts[i] = earned(1);
        }
        bytes memory data =
            abi.encodeWithSignature("pay(address[],uint256[])", accounts, amounts);
        uint256 gas = cost(payer, data) / 100;
        row(existing ? "transfer loop: existing holder" : "transfer loop: new holder", gas);
    }
}
