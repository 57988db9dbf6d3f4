// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {PostedSettlement, TaskState} from "../src/interfaces/Types.sol";
import {SymbolicMarket} from "./SymbolicMarket.sol";

/// @title Claims, from any prior state of pay, debits, owed amounts and bonds.
/// @dev Trees have one or two leaves: the root is the leaf, or the hash of the leaf and any
/// sibling.
contract ClaimProofs is SymbolicMarket {
    struct AccountState {
        uint128 paid;
        uint128 debited;
        uint128 bond;
        uint128 treasury;
        uint256 held;
        uint256 wallet;
    }

    function check_a_claim_moves_exactly_the_increase(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited
    ) external {
        claimMoves(id, account, paid, debited, new bytes32[](0));
    }

    function check_a_claim_with_a_sibling_moves_exactly_the_increase(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited,
        bytes32 sibling
    ) external {
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = sibling;
        claimMoves(id, account, paid, debited, proof);
    }

    function claimMoves(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited,
        bytes32[] memory proof
    ) private {
        TaskState memory t = market.task(id);
        AccountState memory b = accountState(id, account);
        vm.assume(hasNoSplit(id, account));
        vm.assume(taskInvariant(t, b.paid) && tokenInvariant(address(market), account));
        try market.claim(id, account, paid, debited, proof) returns (uint128 amount) {
            assert(paid >= b.paid && amount == paid - b.paid && amount <= t.owed);
            assert(debited >= b.debited);
            assert(amount != 0 || debited != b.debited);
            if (debited != b.debited) {
                assert(debited <= uint256(t.terms.debitMax) * t.finalised);
            }
            uint256 more = debited - b.debited;
            uint256 taken = more < b.bond ? more : b.bond;
            AccountState memory a = accountState(id, account);
            assert(a.paid == paid && a.debited == debited);
            assert(a.bond == b.bond - taken && a.treasury == b.treasury + taken);
            assert(a.held == b.held - amount && a.wallet == b.wallet + amount);
            TaskState memory u = market.task(id);
            assert(uint256(a.paid) + u.owed == uint256(b.paid) + t.owed);
            assert(taskInvariant(u, a.paid));
            t.owed = u.owed;
            assert(same(u, t));
        } catch {}
    }

    function check_a_claim_is_paid_once(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited
    ) external {
        TaskState memory t = market.task(id);
        vm.assume(hasNoSplit(id, account));
        vm.assume(taskInvariant(t, accountState(id, account).paid));
        vm.assume(tokenInvariant(address(market), account));
        bytes32[] memory none = new bytes32[](0);
        try market.claim(id, account, paid, debited, none) {
            try market.claim(id, account, paid, debited, none) {
                assert(false);
            } catch {}
        } catch {}
    }

    function check_a_claim_changes_no_other_account(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited,
        address other
    ) external {
        vm.assume(other != account && other != address(market) && hasNoSplit(id, account));
        AccountState memory b = accountState(id, other);
        vm.assume(taskInvariant(market.task(id), accountState(id, account).paid));
        vm.assume(tokenInvariant(address(market), account));
        try market.claim(id, account, paid, debited, new bytes32[](0)) {
            AccountState memory a = accountState(id, other);
            assert(a.paid == b.paid && a.debited == b.debited && a.bond == b.bond);
            assert(a.wallet == b.wallet);
        } catch {}
    }

    function check_a_claim_changes_no_other_task(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited,
        bytes32 other
    ) external {
        vm.assume(other != id && hasNoSplit(id, account));
        TaskState memory b = market.task(other);
        AccountState memory before = accountState(other, account);
        try market.claim(id, account, paid, debited, new bytes32[](0)) {
            assert(same(market.task(other), b));
            AccountState memory a = accountState(other, account);
            assert(a.paid == before.paid && a.debited == before.debited && a.bond == before.bond);
        } catch {}
    }

    function check_only_the_leaf_of_the_final_root_is_paid(
        bytes32 id,
        PostedSettlement calldata s,
        address account,
        uint256 paid,
        uint256 debited,
        uint256 second
    ) external {
        at(second);
        vm.assume(hasNoSplit(id, account));
        vm.assume(market.finalize(id, only(s)) == 1);
        bytes32 leaf = keccak256(abi.encode(keccak256(abi.encode(account, paid, debited))));
        try market.claim(id, account, paid, debited, new bytes32[](0)) {
            // The market stores 20 bytes of the root.
            assert(bytes20(leaf) == bytes20(s.root));
        } catch {}
    }

    function accountState(bytes32 id, address account)
        private
        view
        returns (AccountState memory b)
    {
        (b.paid, b.debited) = market.claimed(id, account);
        b.bond = market.bondOf(id, account).amount;
        b.treasury = market.treasury();
        b.held = token.balanceOf(address(market));
        b.wallet = token.balanceOf(account);
    }
}
