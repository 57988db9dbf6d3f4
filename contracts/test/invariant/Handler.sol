// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IMarket} from "../../src/interfaces/IMarket.sol";
import {IMarketErrors} from "../../src/interfaces/IMarketErrors.sol";
import {
    Claim,
    Collateral,
    LastSettlement,
    MemberShare,
    PostedSettlement,
    Receipt,
    Settlement,
    SlashOrder,
    TaskState,
    Terms
} from "../../src/interfaces/Types.sol";
import {Actors} from "../Actors.sol";
import {Tree} from "../Tree.sol";

/// @title Handler of the invariant tests: random actions within the rules, so that no call may
/// revert.
/// @dev It checks the properties of single calls (recipient, amounts, timing) around each call; the
/// invariant tests check those that hold at any time.
contract Handler is Actors {
    bytes32[2] public tasks = [bytes32("quick"), bytes32("slow")];

    /// The pay and debits of each account in each settlement of each task.
    struct Totals {
        uint256[2] paid;
        uint256[2] debited;
    }

    mapping(bytes32 => mapping(uint256 index => Totals)) private _totals;
    mapping(bytes32 => uint256) public claimedSum;
    mapping(bytes32 => uint256) private _lastPost;
    mapping(bytes32 => bool) public cancelledIn;
    uint256 public calls;

    /// A member of splits that sends nothing.
    address private constant SILENT = address(0x51135717);

    constructor(IMarket market_, IERC20 token_) {
        market = market_;
        token = token_;
    }

    /// @dev No call may change a bystander's balance; only finalising calls may change a final
    /// root.
    modifier checked(bool finalising) {
        bytes32 before = _observedState(finalising);
        calls += 1;
        _;
        vm.assertEq(
            _observedState(finalising), before, "bystander's balance and final roots are unchanged"
        );
    }

    function _observedState(bool finalising) private view returns (bytes32) {
        uint256 aside = token.balanceOf(stranger);
        if (finalising) return bytes32(aside);
        bytes32 quick = market.task(tasks[0]).root;
        return keccak256(abi.encode(aside, quick, market.task(tasks[1]).root));
    }

    function actor(uint256 who) public view returns (address) {
        return who % 2 == 0 ? ada : ben;
    }

    /// @dev An account with a bond: a participant or the coordinator.
    function bondOwner(uint256 who) public view returns (address) {
        return who % 3 == 2 ? coordinator : actor(who % 3);
    }

    function termsOf(bytes32 id) public view returns (Terms memory t) {
        t = terms(id);
        if (id == tasks[1]) {
            t.challengeMs = 5 * WINDOW;
            t.stakeMin = uint128(20 * FLN);
        }
    }

    // ------------------------------------------------------------------------------------- actions

    function wait(uint256 seconds_) external checked(false) {
        vm.warp(block.timestamp + 1 + seconds_ % 90);
    }

    function openTask(uint256 which) external checked(false) {
        bytes32 id = tasks[which % 2];
        if (market.task(id).head != 0) return;
        openTask(termsOf(id));
    }

    function postRound(uint256 which, uint256 seed) external checked(false) {
        bytes32 id = tasks[which % 2];
        TaskState memory t = market.task(id);
        if (t.head == 0 || t.closed || t.pending >= 64) return;
        if (market.clock() > t.terms.expires) return;
        uint256 index = activeSettlements[id].length;
        Totals memory totals;
        if (index > 0) totals = _totals[id][index - 1];
        uint32 round =
            index == 0 ? 1 : activeSettlements[id][index - 1].round + 1 + uint32(seed % 2);
        if (round > t.terms.rounds) return;
        uint256 left =
            uint256(t.terms.data) * round / t.terms.rounds - totals.paid[0] - totals.paid[1];
        totals.paid[0] += seed % (left / 2 + 1);
        totals.paid[1] += (seed >> 64) % (left / 2 + 1);
        totals.debited[(seed >> 128) % 2] += (seed >> 130) % t.terms.debitMax;
        if (!_post(id, round, totals, uint128(seed % (t.terms.infrastructure / 50)))) return;
        _totals[id][index] = totals;
        _lastPost[id] = market.clock();
    }

    function finalizeDue(uint256 which) external checked(true) {
        bytes32 id = tasks[which % 2];
        if (market.task(id).head == 0) return;
        PostedSettlement[] memory waiting = pending(id);
        uint256 due = 0;
        while (due < waiting.length && market.clock() > waiting[due].finalAt) ++due;
        vm.assertEq(market.finalize(id, waiting), due, "everything that is due, and no more");
    }

    function checkpointHead(uint256 which) external checked(false) {
        bytes32 id = tasks[which % 2];
        if (market.task(id).head == 0) return;
        vm.prank(arbiter);
        market.checkpointHead(id);
    }

    function cancelFrom(uint256 which, uint256 seed) external checked(false) {
        bytes32 id = tasks[which % 2];
        uint256 waiting = market.task(id).pending;
        if (waiting == 0) return;
        uint256 count = activeSettlements[id].length;
        uint256 index = count - 1 - seed % waiting;
        if (market.clock() > activeSettlements[id][index].finalAt) return;
        PostedSettlement[] memory gone = list(id, index, count);
        vm.prank(arbiter);
        market.cancel(id, heads[id][index], gone);
        cancelledIn[id] = true;
        dropPosted(id, index);
    }

    function claimFor(uint256 which, uint256 who) external checked(false) {
        bytes32 id = tasks[which % 2];
        uint256 finalCount = _finalCount(id);
        if (finalCount == 0) return;
        Totals memory totals = _totals[id][finalCount - 1];
        Claim memory c = _claimOf(id, totals, who % 2);
        (uint128 paid, uint128 debited) = market.claimed(id, c.account);
        if (c.paid == paid && c.debited == debited) return;
        claimedSum[id] += c.paid - paid;
        _claimChecked(c, c.paid - paid, actor(who % 2 + 1));
    }

    /// @dev A split among the actor, a silent member and the other actor, if it is not too late.
    function splitPay(uint256 which, uint256 who, uint256 seed) external checked(false) {
        bytes32 id = tasks[which % 2];
        TaskState memory t = market.task(id);
        address owner = actor(who);
        if (t.head == 0 || t.closed || market.splitOf(id, owner).length != 0) return;
        MemberShare[] memory list = new MemberShare[](3);
        uint32 first = 1 + uint32(seed % 900_000);
        uint32 second = 1 + uint32((seed >> 64) % (999_998 - first));
        list[0] = MemberShare(ben < ada ? ben : ada, first);
        list[1] = MemberShare(ben < ada ? ada : ben, second);
        list[2] = MemberShare(SILENT, 1_000_000 - first - second);
        (uint128 paid, uint128 debited) = market.claimed(id, owner);
        bool late = paid != 0 || debited != 0 || market.bondOf(id, owner).amount != 0;
        if (late) vm.expectPartialRevert(IMarketErrors.SplitTooLate.selector);
        vm.prank(owner);
        market.setSplit(id, list);
    }

    /// @dev The claim of an account with a split: each member receives the units of its part.
    function _splitClaimChecked(Claim memory c, uint256 due, MemberShare[] memory list) private {
        uint256[] memory before = new uint256[](list.length);
        for (uint256 i = 0; i < list.length; ++i) {
            before[i] = token.balanceOf(list[i].member);
        }
        claim(c);
        uint256 start = 0;
        for (uint256 i = 0; i < list.length; ++i) {
            uint256 gained = token.balanceOf(list[i].member) - before[i];
            uint256 later = _owned(c.paid, start, list[i].share);
            vm.assertEq(gained, later - _owned(c.paid - due, start, list[i].share), "its units");
            start += list[i].share;
        }
    }

    function _owned(uint256 total, uint256 start, uint256 share) private pure returns (uint256) {
        uint256 begun = total % 1_000_000;
        uint256 inTurn = begun <= start ? 0 : begun - start < share ? begun - start : share;
        return total / 1_000_000 * share + inTurn;
    }

    function _claimChecked(Claim memory c, uint256 due, address bystander) private {
        MemberShare[] memory list = market.splitOf(c.task, c.account);
        if (list.length != 0) return _splitClaimChecked(c, due, list);
        uint256 own = token.balanceOf(c.account);
        uint256 other = token.balanceOf(bystander);
        claim(c);
        vm.assertEq(token.balanceOf(c.account) - own, due, "the leaf's address is paid");
        vm.assertEq(token.balanceOf(bystander), other, "and no other account");
    }

    function addBond(uint256 which, uint256 who, uint256 amount) external checked(false) {
        bytes32 id = tasks[which % 2];
        TaskState memory t = market.task(id);
        if (t.head == 0 || t.closed) return;
        address owner = bondOwner(who);
        // The coordinator's bond has no minimum.
        if (owner == coordinator) amount %= 60 * FLN;
        else amount = t.terms.bondMin + amount % (5 * FLN);
        if (token.balanceOf(owner) < amount) return;
        vm.prank(owner);
        market.bond(id, uint128(amount));
    }

    function unbondAll(uint256 which, uint256 who) external checked(false) {
        bytes32 id = tasks[which % 2];
        if (market.bondOf(id, bondOwner(who)).amount == 0) return;
        vm.prank(bondOwner(who));
        market.unbond(id);
    }

    function withdrawBond(uint256 which, uint256 who) external checked(false) {
        bytes32 id = tasks[which % 2];
        address owner = bondOwner(who);
        Collateral memory held = market.bondOf(id, owner);
        bool closed = market.task(id).closed;
        if (held.amount == 0 || (held.release == 0 && !closed)) return;
        bool due = market.clock() >= _earliest(id, held.release, closed);
        // The coordinator's bond stays until the close.
        if (owner == coordinator && !closed) due = false;
        uint256 before = token.balanceOf(owner);
        vm.prank(owner);
        try market.withdrawBond(id) returns (uint128 amount) {
            vm.assertTrue(due, "unbonding never early");
            vm.assertEq(token.balanceOf(owner) - before, amount, "to its owner");
        } catch {
            vm.assertFalse(due, "and never late");
        }
    }

    function addStake(uint256 who, uint256 amount) external checked(false) {
        amount = 1 + amount % (30 * FLN);
        if (token.balanceOf(actor(who)) < amount) return;
        vm.prank(actor(who));
        market.stake(uint128(amount));
    }

    function pledgeTo(uint256 which, uint256 who) external checked(false) {
        bytes32 id = tasks[which % 2];
        TaskState memory t = market.task(id);
        if (t.head == 0 || t.closed) return;
        if (market.stakeOf(actor(who)).amount < t.terms.stakeMin) return;
        vm.prank(actor(who));
        market.pledge(id);
    }

    function unstakeAll(uint256 who) external checked(false) {
        if (market.stakeOf(actor(who)).amount == 0) return;
        vm.prank(actor(who));
        market.unstake();
    }

    function withdrawStake(uint256 who) external checked(false) {
        Collateral memory held = market.stakeOf(actor(who));
        if (held.amount == 0 || held.release == 0 || market.clock() < held.release) return;
        vm.prank(actor(who));
        vm.assertEq(market.withdrawStake(), held.amount, "all of it");
    }

    function slashPart(uint256 which, uint256 who, bool ofStake, uint256 amount)
        external
        checked(false)
    {
        bytes32 id = tasks[which % 2];
        TaskState memory t = market.task(id);
        address whom = ofStake ? actor(who) : bondOwner(who);
        // After the close only the coordinator's bond can be slashed.
        if (t.head == 0 || (t.closed && whom != coordinator)) return;
        uint256 held = ofStake ? market.stakeOf(whom).amount : market.bondOf(id, whom).amount;
        if (held == 0 || (ofStake && !market.pledged(id, whom))) return;
        uint256 room = ofStake
            ? t.terms.stakeMin - market.slashedOf(id, whom)
            : whom == coordinator ? held : t.terms.bondMin - market.slashedBondOf(id, whom);
        if (room == 0) return;
        amount = 1 + amount % (60 * FLN);
        vm.prank(arbiter);
        uint256 taken = market.slash(SlashOrder(id, whom, ofStake, uint128(amount), "evidence"));
        uint256 least = amount < held ? amount : held;
        vm.assertEq(taken, least < room ? least : room, "slash <= deposit, and <= bondMin or stakeMin");
    }

    function closeTask(uint256 which, uint256 dice) external checked(true) {
        bytes32 id = tasks[which % 2];
        TaskState memory t = market.task(id);
        // Rarely, because otherwise most histories would be short.
        if (t.head == 0 || t.closed || dice % 8 != 0) return;
        PostedSettlement[] memory waiting = pending(id);
        if (waiting.length > 0 && market.clock() <= waiting[waiting.length - 1].finalAt) return;
        bool due = (t.closesAt != 0 && market.clock() >= t.closesAt)
            || market.clock() > t.terms.expires;
        uint32 round = waiting.length > 0 ? waiting[waiting.length - 1].round : t.round;
        if (!due && round < t.terms.rounds && !cancelledIn[id]) {
            // A recorder of logs also records those of a call that is reverted later.
            if (waiting.length > 0) return;
            vm.expectPartialRevert(IMarketErrors.TooEarly.selector);
            vm.prank(coordinator);
            market.close(id, waiting);
            return;
        }
        uint256 before = token.balanceOf(buyer);
        vm.prank(due ? stranger : coordinator);
        uint256 refund = market.close(id, waiting);
        vm.assertEq(token.balanceOf(buyer) - before, refund, "to the buyer");
    }

    function announceClose(uint256 which) external checked(true) {
        bytes32 id = tasks[which % 2];
        TaskState memory t = market.task(id);
        if (t.head == 0 || t.closed || t.pending != 0) return;
        vm.prank(coordinator);
        market.announceClose(id);
    }

    /// @dev An objection with a receipt of any round, forged every fourth time.
    function objectToClose(uint256 which, uint64 round, uint256 dice) external checked(true) {
        bytes32 id = tasks[which % 2];
        TaskState memory t = market.task(id);
        if (t.head == 0 || t.closed || t.pending != 0) return;
        bool forged = dice % 4 == 0;
        round = t.round + (round % 3);
        (Receipt memory receipt, bytes memory signature) =
            signedReceipt(id, round, forged ? BUYER_KEY : COORDINATOR_KEY);
        uint256 held = market.bondOf(id, coordinator).amount;
        if (t.closesAt == 0) {
            vm.expectPartialRevert(IMarketErrors.NotFound.selector);
        } else if (round <= t.round) {
            vm.expectPartialRevert(IMarketErrors.InvalidArgument.selector);
        } else if (forged) {
            vm.expectPartialRevert(IMarketErrors.InvalidSignature.selector);
        } else {
            vm.prank(stranger);
            vm.assertEq(market.object(receipt, signature), held, "the whole bond");
            return;
        }
        market.object(receipt, signature);
    }

    // -------------------------------------------------------------------------------------- inside

    function _finalCount(bytes32 id) private view returns (uint256) {
        return activeSettlements[id].length - market.task(id).pending;
    }

    function _earliest(bytes32 id, uint256 release, bool closed) private view returns (uint256) {
        uint256 windows = 2 * termsOf(id).challengeMs;
        uint256 posted = _lastPost[id];
        if (closed) return posted == 0 ? 0 : posted + windows;
        if (posted == 0) return release;
        uint256 proven = (posted < release ? posted : release) + windows;
        return proven > release ? proven : release;
    }

    /// @dev Posts a settlement if the coordinator's bond covers what is then posted and not final;
    /// otherwise checks that it is refused.
    function _post(bytes32 id, uint32 round, Totals memory totals, uint128 more)
        private
        returns (bool posted)
    {
        uint256 index = activeSettlements[id].length;
        uint128 before = index == 0 ? 0 : activeSettlements[id][index - 1].infrastructureTotal;
        Terms memory t = termsOf(id);
        uint256 part = uint256(t.infrastructure) * round / t.rounds;
        Settlement memory s;
        s.task = id;
        s.round = round;
        s.report = keccak256(abi.encode("report", round));
        s.root = _heap(totals)[0];
        s.dataTotal = uint128(totals.paid[0] + totals.paid[1]);
        s.infrastructureTotal = before + more > part ? before : before + more;
        // Half of the floor, and the improvement that covers the rest.
        uint256 floor = uint256(t.data) * t.floorShare * round / t.rounds / 2e6;
        s.scorePayTotal = s.dataTotal > floor ? s.dataTotal - uint128(floor) : 0;
        s.improvementTotalNano = covering(s.scorePayTotal);
        bool covered = _isCovered(id, s);
        LastSettlement memory previous = last(id);
        bytes32 head = market.task(id).head;
        vm.prank(coordinator);
        try market.post(s, previous) {
            posted = true;
            recordPosted(s, head);
        } catch {}
        vm.assertTrue(posted == covered, "posted if the bond covers it, and only then");
    }

    function _isCovered(bytes32 id, Settlement memory s) private view returns (bool) {
        TaskState memory t = market.task(id);
        Collateral memory held = market.bondOf(id, coordinator);
        uint256 paid = uint256(t.dataPaid) + t.infrastructurePaid;
        uint256 covered = paid + (held.release == 0 ? held.amount : 0);
        vm.assertEq(market.coveredOf(id), covered, "final pay and the coordinator's bond");
        return uint256(s.dataTotal) + s.infrastructureTotal <= covered;
    }

    function _heap(Totals memory totals) private view returns (bytes32[] memory) {
        bytes32[] memory leaves = new bytes32[](2);
        leaves[0] = Tree.leaf(ada, totals.paid[0], totals.debited[0]);
        leaves[1] = Tree.leaf(ben, totals.paid[1], totals.debited[1]);
        return Tree.nodes(leaves);
    }

    function _claimOf(bytes32 id, Totals memory totals, uint256 who)
        private
        view
        returns (Claim memory)
    {
        bytes32[] memory heap = _heap(totals);
        uint256 paid = totals.paid[who];
        uint256 debited = totals.debited[who];
        bytes32[] memory proof = Tree.proof(heap, Tree.leaf(actor(who), paid, debited));
        return Claim(id, actor(who), paid, debited, proof);
    }
}
