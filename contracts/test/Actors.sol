// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IMarket} from "../src/interfaces/IMarket.sol";
import {IMarketErrors} from "../src/interfaces/IMarketErrors.sol";
import {
    Claim,
    LastSettlement,
    PostedSettlement,
    Receipt,
    Settlement,
    SlashOrder,
    TaskState,
    Terms
} from "../src/interfaces/Types.sol";
import {SettlementChain} from "../src/market/SettlementChain.sol";
import {Tree} from "./Tree.sol";
import {Vm} from "./Vm.sol";

/// @title Test base: a buyer, a coordinator, an arbiter and two participants, and helpers for their
/// actions.
/// @dev It also implements the off-chain part: it records posted settlements, as a client does from
/// the events.
abstract contract Actors {
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));

    uint256 internal constant FLN = 1e18;
    uint256 internal constant SUPPLY = 1_000_000 * FLN;
    uint64 internal constant WINDOW = 100_000;
    uint64 internal constant DELAY = 50_000;
    uint64 internal constant START = 1_000_000;
    bytes32 internal constant TASK = keccak256("task");

    uint256 internal constant BUYER_KEY = 0xB0B;
    address internal buyer = vm.addr(BUYER_KEY);
    uint256 internal constant COORDINATOR_KEY = 0xC0;
    address internal coordinator = vm.addr(COORDINATOR_KEY);
    address internal arbiter = address(0xA0);
    address internal ada = address(0xADA);
    address internal ben = address(0xBE2);
    address internal stranger = address(0x57);

    IMarket internal market;
    IERC20 internal token;

    /// The active settlements of each task, oldest first, including final ones; and the value of
    /// `head` before each.
    mapping(bytes32 => PostedSettlement[]) internal activeSettlements;
    mapping(bytes32 => bytes32[]) internal heads;

    /// @dev Deploys a market for a token whose supply this contract holds.
    function deployMarket(IERC20 token_) internal {
        token = token_;
        market = IMarket(vm.deployCode("Market.sol:Market", abi.encode(token)));
        address[6] memory actors = [buyer, coordinator, arbiter, ada, ben, stranger];
        for (uint256 i = 0; i < actors.length; ++i) {
            fund(actors[i], 10_000 * FLN);
        }
    }

    function fund(address to, uint256 amount) internal {
        token.transfer(to, amount);
        vm.prank(to);
        token.approve(address(market), type(uint256).max);
    }

    function terms(bytes32 id) internal view returns (Terms memory t) {
        t.task = id;
        t.buyer = buyer;
        t.coordinator = coordinator;
        t.arbiter = arbiter;
        t.data = uint128(1_000 * FLN);
        t.infrastructure = uint128(200 * FLN);
        t.rounds = 20;
        t.perNatMax = uint128(100 * FLN);
        t.floorShare = 200_000;
        t.bondMin = uint128(10 * FLN);
        t.debitMax = uint128(5 * FLN);
        t.stakeMin = uint128(50 * FLN);
        t.challengeMs = WINDOW;
        t.unbondMs = DELAY;
        t.expires = START * 1_000 + 10_000_000;
    }

    function openTask() internal {
        openTask(terms(TASK));
    }

    function openTask(Terms memory t) internal {
        vm.prank(t.buyer);
        market.openTask(t);
    }

    /// @dev The last active settlement.
    function last(bytes32 id) internal view returns (LastSettlement memory previous) {
        uint256 count = activeSettlements[id].length;
        if (count == 0) return previous;
        PostedSettlement memory s = activeSettlements[id][count - 1];
        bytes32 inner = SettlementChain.innerHash(
            heads[id][count - 1], s.report, s.scorePayTotal, s.improvementTotalNano, s.finalAt
        );
        return LastSettlement(inner, s.round, s.root, s.dataTotal, s.infrastructureTotal);
    }

    /// @dev The improvement that covers this pay for scores, in nano-nats, rounded up.
    function covering(uint256 paid) internal pure returns (uint64) {
        uint256 price = 100 * FLN;
        return uint64((paid * 1e9 + price - 1) / price);
    }

    function settlement(uint32 round, bytes32 root, uint256 data, uint256 infrastructure)
        internal
        pure
        returns (Settlement memory)
    {
        bytes32 report = keccak256(abi.encode("report", round));
        return Settlement(
            TASK,
            round,
            report,
            root,
            uint128(data),
            uint128(data),
            uint128(infrastructure),
            covering(data)
        );
    }

    function post(uint32 round, bytes32 root, uint256 data, uint256 infrastructure) internal {
        post(settlement(round, root, data, infrastructure));
    }

    /// @dev Posts a settlement; first the coordinator bonds what its cover lacks.
    function post(Settlement memory s) internal {
        cover(s.task, uint256(s.dataTotal) + s.infrastructureTotal);
        LastSettlement memory previous = last(s.task);
        bytes32 before = market.task(s.task).head;
        vm.prank(coordinator);
        market.post(s, previous);
        recordPosted(s, before);
    }

    /// @dev The coordinator bonds what lacks to post up to this total.
    function cover(bytes32 id, uint256 total) internal {
        uint256 covered = market.coveredOf(id);
        if (covered >= total) return;
        vm.prank(coordinator);
        market.bond(id, uint128(total - covered));
    }

    function recordPosted(Settlement memory s, bytes32 before) internal {
        uint64 finalAt = market.clock() + market.task(s.task).terms.challengeMs;
        activeSettlements[s.task].push(
            PostedSettlement(
                s.round,
                s.report,
                s.root,
                s.dataTotal,
                s.scorePayTotal,
                s.infrastructureTotal,
                s.improvementTotalNano,
                finalAt
            )
        );
        heads[s.task].push(before);
    }

    function pending() internal view returns (PostedSettlement[] memory) {
        return pending(TASK);
    }

    function pending(bytes32 id) internal view returns (PostedSettlement[] memory) {
        uint256 count = activeSettlements[id].length;
        return list(id, count - market.task(id).pending, count);
    }

    /// @dev The active settlements at indices `from` to `to`, exclusive.
    function list(bytes32 id, uint256 from, uint256 to)
        internal
        view
        returns (PostedSettlement[] memory some)
    {
        some = new PostedSettlement[](to - from);
        for (uint256 i = from; i < to; ++i) {
            some[i - from] = activeSettlements[id][i];
        }
    }

    function cancel(uint256 index) internal {
        uint256 count = activeSettlements[TASK].length;
        PostedSettlement[] memory gone = list(TASK, index, count);
        bytes32 before = heads[TASK][index];
        vm.prank(arbiter);
        market.cancel(TASK, before, gone);
        dropPosted(TASK, index);
    }

    function dropPosted(bytes32 id, uint256 index) internal {
        while (activeSettlements[id].length > index) {
            activeSettlements[id].pop();
            heads[id].pop();
        }
    }

    /// @dev The coordinator announces the close, waits for its time and closes.
    function closeAnnounced(bytes32 id) internal returns (uint128) {
        PostedSettlement[] memory none;
        vm.prank(coordinator);
        market.announceClose(id);
        vm.warp(market.task(id).closesAt / 1_000);
        vm.prank(coordinator);
        return market.close(id, none);
    }

    /// @dev Ada's receipt for an update of a round, and a signature of it.
    function signedReceipt(bytes32 id, uint64 round, uint256 key)
        internal
        view
        returns (Receipt memory receipt, bytes memory signature)
    {
        receipt = Receipt(id, round, ada, keccak256("update"));
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, market.receiptDigest(receipt));
        signature = abi.encodePacked(r, s, v);
    }

    function finalize() internal returns (uint256) {
        return market.finalize(TASK, pending());
    }

    /// @dev A round with these running totals, posted and finalised.
    function settle(uint32 round, uint256 adaPaid, uint256 adaDebited, uint256 benPaid) internal {
        bytes32[] memory heap = tree(adaPaid, adaDebited, benPaid);
        post(round, heap[0], adaPaid + benPaid, 0);
        advance(WINDOW + 1_000);
        finalize();
    }

    function tree(uint256 adaPaid, uint256 adaDebited, uint256 benPaid)
        internal
        view
        returns (bytes32[] memory)
    {
        bytes32[] memory leaves = new bytes32[](2);
        leaves[0] = Tree.leaf(ada, adaPaid, adaDebited);
        leaves[1] = Tree.leaf(ben, benPaid, 0);
        return Tree.nodes(leaves);
    }

    function adasClaim(uint256 adaPaid, uint256 adaDebited, uint256 benPaid)
        internal
        view
        returns (Claim memory)
    {
        bytes32[] memory heap = tree(adaPaid, adaDebited, benPaid);
        bytes32[] memory proof = Tree.proof(heap, Tree.leaf(ada, adaPaid, adaDebited));
        return Claim(TASK, ada, adaPaid, adaDebited, proof);
    }

    function bensClaim(uint256 adaPaid, uint256 adaDebited, uint256 benPaid)
        internal
        view
        returns (Claim memory)
    {
        bytes32[] memory heap = tree(adaPaid, adaDebited, benPaid);
        bytes32[] memory proof = Tree.proof(heap, Tree.leaf(ben, benPaid, 0));
        return Claim(TASK, ben, benPaid, 0, proof);
    }

    function claim(Claim memory c) internal returns (uint128) {
        return market.claim(c.task, c.account, c.paid, c.debited, c.proof);
    }

    function claimCall(Claim memory c) internal pure returns (bytes memory) {
        return abi.encodeWithSelector(
            IMarket.claim.selector, c.task, c.account, c.paid, c.debited, c.proof
        );
    }

    function expectError(bytes memory encoded) internal {
        vm.expectRevert(encoded);
    }

    /// @dev Invalid settlements are distinguished by their text.
    function expectInvalidSettlement(uint32 round, string memory reason) internal {
        expectError(
            abi.encodeWithSelector(IMarketErrors.InvalidSettlement.selector, round, reason)
        );
    }

    function bond(address account, uint256 amount) internal {
        vm.prank(account);
        market.bond(TASK, uint128(amount));
    }

    function slashOrder(address account, bool stake, uint256 amount)
        internal
        pure
        returns (SlashOrder memory)
    {
        return SlashOrder(TASK, account, stake, uint128(amount), keccak256("evidence"));
    }

    function advance(uint256 ms) internal {
        vm.warp(block.timestamp + ms / 1_000);
    }

    function task() internal view returns (TaskState memory) {
        return market.task(TASK);
    }
}
