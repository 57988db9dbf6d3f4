// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {LastSettlement, PostedSettlement, Receipt, Settlement, TaskState, Terms} from
    "../src/interfaces/Types.sol";
import {SymbolicMarket} from "./SymbolicMarket.sol";

/// @title A task's escrow from opening to refund, from any prior state.
contract TaskProofs is SymbolicMarket {
    function check_opening_locks_exactly_the_deposit(Terms calldata terms, address account)
        external
    {
        vm.assume(tokenInvariant(address(market), terms.buyer));
        (uint128 claimed,) = market.claimed(terms.task, account);
        TaskState memory old = market.task(terms.task);
        // A task that was never opened has paid nothing.
        vm.assume(claimed == 0 && old.owed == 0 && old.dataPaid == 0);
        vm.assume(old.infrastructurePaid == 0);
        uint256 held = token.balanceOf(address(market));
        uint256 wallet = token.balanceOf(terms.buyer);
        vm.prank(terms.buyer);
        try market.openTask(terms) {
            TaskState memory t = market.task(terms.task);
            uint256 deposit = uint256(terms.data) + terms.infrastructure;
            assert(old.head == 0);
            assert(token.balanceOf(address(market)) == held + deposit);
            assert(token.balanceOf(terms.buyer) == wallet - deposit);
            assert(keccak256(abi.encode(t.terms)) == keccak256(abi.encode(terms)));
            assert(taskInvariant(t, claimed));
        } catch {}
    }

    /// @dev The limits of the totals are products of 128 and 32 bits, for which the solver finds no
    /// answer in time: forge and the reference model test them.
    function check_a_settlement_is_posted_by_its_coordinator_in_order(
        Settlement calldata s,
        LastSettlement calldata last,
        address sender,
        uint256 second
    ) external {
        at(second);
        TaskState memory t = market.task(s.task);
        uint256 covered = market.coveredOf(s.task);
        vm.prank(sender);
        try market.post(s, last) {
            TaskState memory u = market.task(s.task);
            assert(sender == t.terms.coordinator);
            if (u.head != t.head) {
                assert(!t.closed && market.clock() <= t.terms.expires);
                assert(s.dataTotal >= last.dataTotal && s.dataTotal >= s.scorePayTotal);
                assert(s.infrastructureTotal >= last.infrastructureTotal);
                assert(s.round > last.round && s.round <= t.terms.rounds);
                assert(uint256(s.dataTotal) + s.infrastructureTotal <= covered);
            }
            // Derived from the time of the last post, which the prior state may have in the future.
            u.closesAt = t.closesAt;
            (u.head, u.pending, u.lastPost) = (t.head, t.pending, t.lastPost);
            assert(same(u, t));
        } catch {}
    }

    function check_a_finalised_settlement_is_owed_exactly(
        bytes32 id,
        PostedSettlement calldata s,
        address account,
        uint256 second
    ) external {
        at(second);
        TaskState memory t = market.task(id);
        (uint128 claimed,) = market.claimed(id, account);
        vm.assume(taskInvariant(t, claimed) && wasPosted(t, s));
        address coordinator = t.terms.coordinator;
        bool trusted = market.coveredOf(id) == type(uint96).max;
        vm.assume(trusted || isCoverExact(id, coordinator));
        try market.finalize(id, only(s)) returns (uint256 count) {
            TaskState memory u = market.task(id);
            assert(count == (market.clock() > s.finalAt ? 1 : 0));
            if (count == 0) {
                assert(same(u, t));
                return;
            }
            uint256 grown = uint256(s.dataTotal) - t.dataPaid + s.infrastructureTotal
                - t.infrastructurePaid;
            assert(u.owed == t.owed + grown);
            assert(u.dataPaid == s.dataTotal && u.infrastructurePaid == s.infrastructureTotal);
            assert(u.root == s.root && u.round == s.round);
            assert(!trusted || market.coveredOf(id) == type(uint96).max);
            assert(trusted || isCoverExact(id, coordinator));
            assert(taskInvariant(u, claimed));
        } catch {}
    }

    function check_closing_refunds_exactly_the_rest(
        bytes32 id,
        address sender,
        uint256 second
    ) external {
        at(second);
        closeRefunds(id, sender, new PostedSettlement[](0));
    }

    function check_closing_with_a_settlement_due_refunds_exactly_the_rest(
        bytes32 id,
        address sender,
        PostedSettlement calldata s,
        uint256 second
    ) external {
        at(second);
        vm.assume(wasPosted(market.task(id), s));
        closeRefunds(id, sender, only(s));
    }

    function check_a_closed_task_refunds_nothing(bytes32 id, address sender, uint256 second)
        external
    {
        at(second);
        TaskState memory t = market.task(id);
        vm.assume(t.closed);
        vm.prank(sender);
        try market.close(id, new PostedSettlement[](0)) {
            assert(false);
        } catch {}
    }

    function check_a_close_is_announced_a_window_ahead(bytes32 id, address sender, uint256 second)
        external
    {
        at(second);
        TaskState memory t = market.task(id);
        vm.prank(sender);
        try market.announceClose(id) {
            TaskState memory u = market.task(id);
            assert(sender == t.terms.coordinator && !t.closed && t.pending == 0);
            // A repeated call changes nothing.
            uint64 moment = market.clock() + t.terms.challengeMs;
            assert(u.closesAt == (t.closesAt == 0 ? moment : t.closesAt) || u.closesAt == 0);
            u.closesAt = t.closesAt;
            assert(same(u, t));
        } catch {}
    }

    /// @dev The signature is the solver's choice: it can be any account's.
    function check_an_objection_takes_only_the_coordinators_bond(
        Receipt calldata receipt,
        address account,
        address sender,
        uint256 second
    ) external {
        at(second);
        bytes32 id = receipt.task;
        TaskState memory t = market.task(id);
        address coordinator = t.terms.coordinator;
        uint128 held = market.bondOf(id, coordinator).amount;
        uint128 other = market.bondOf(id, account).amount;
        uint128 treasury = market.treasury();
        bytes memory signature = svm.createBytes(65, "signature");
        vm.prank(sender);
        try market.object(receipt, signature) returns (uint128 taken) {
            TaskState memory u = market.task(id);
            assert(t.closesAt != 0 && u.closesAt == 0 && !t.closed && t.pending == 0);
            assert(receipt.round > t.round);
            assert(taken == held && market.bondOf(id, coordinator).amount == 0);
            assert(market.treasury() == treasury + taken);
            assert(account == coordinator || market.bondOf(id, account).amount == other);
            u.closesAt = t.closesAt;
            assert(same(u, t));
        } catch {}
    }

    /// @dev The conditions that `post` has checked for this settlement and for all earlier ones.
    function wasPosted(TaskState memory t, PostedSettlement memory s) private pure returns (bool) {
        return s.dataTotal >= t.dataPaid && s.dataTotal <= t.terms.data
            && s.infrastructureTotal >= t.infrastructurePaid
            && s.infrastructureTotal <= t.terms.infrastructure;
    }

    function closeRefunds(bytes32 id, address sender, PostedSettlement[] memory list) private {
        TaskState memory t = market.task(id);
        vm.assume(taskInvariant(t, 0) && tokenInvariant(address(market), t.terms.buyer));
        uint256 held = token.balanceOf(address(market));
        uint256 wallet = token.balanceOf(t.terms.buyer);
        vm.prank(sender);
        try market.close(id, list) returns (uint128 refund) {
            TaskState memory u = market.task(id);
            uint256 deposit = uint256(t.terms.data) + t.terms.infrastructure;
            assert(!t.closed && u.closed && u.pending == 0);
            bool announced = t.closesAt != 0 && market.clock() >= t.closesAt;
            bool due = announced || market.clock() > t.terms.expires;
            assert(due || sender == t.terms.coordinator);
            assert(refund == deposit - u.dataPaid - u.infrastructurePaid);
            assert(u.refunded == refund && u.dataLocked == 0 && u.infrastructureLocked == 0);
            assert(token.balanceOf(address(market)) == held - refund);
            assert(token.balanceOf(t.terms.buyer) == wallet + refund);
            assert(taskInvariant(u, 0));
        } catch {}
    }
}
