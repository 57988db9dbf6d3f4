// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {Collateral, SlashOrder, TaskState} from "../src/interfaces/Types.sol";
import {SymbolicMarket} from "./SymbolicMarket.sol";

/// @title Bonds and stakes: deposits, withdrawals and slashing, from any prior state.
/// @dev Slashing a stake is not proven: a used-up pledge leaves a list of arbitrary length, which
/// the solver cannot handle. `test/Stakes.t.sol` and the invariants test it.
contract CollateralProofs is SymbolicMarket {
    function check_a_bond_grows_by_the_received_amount(bytes32 id, address account, uint128 amount)
        external
    {
        vm.assume(tokenInvariant(address(market), account));
        Collateral memory b = market.bondOf(id, account);
        uint256 held = token.balanceOf(address(market));
        vm.prank(account);
        try market.bond(id, amount) {
            Collateral memory a = market.bondOf(id, account);
            assert(a.amount == uint256(b.amount) + amount && a.release == 0);
            assert(token.balanceOf(address(market)) == held + amount);
        } catch {}
    }

    function check_a_bond_is_returned_in_full_and_never_early(
        bytes32 id,
        address account,
        uint256 second
    ) external {
        at(second);
        vm.assume(tokenInvariant(address(market), account));
        TaskState memory t = market.task(id);
        Collateral memory b = market.bondOf(id, account);
        uint256 wallet = token.balanceOf(account);
        vm.prank(account);
        try market.withdrawBond(id) returns (uint128 amount) {
            assert(amount == b.amount && market.bondOf(id, account).amount == 0);
            assert(token.balanceOf(account) == wallet + amount);
            uint256 windows = 2 * uint256(t.terms.challengeMs);
            uint256 posted = t.lastPost;
            // The bond of a coordinator that is not the arbiter returns after the close.
            assert(t.closed || account != t.terms.coordinator || account == t.terms.arbiter);
            if (t.closed) {
                assert(posted == 0 || market.clock() >= posted + windows);
            } else {
                assert(b.release != 0 && market.clock() >= b.release);
                if (posted > b.release) posted = b.release;
                assert(posted == 0 || market.clock() >= posted + windows);
            }
        } catch {}
    }

    function check_a_slash_takes_at_most_the_covering_bond(SlashOrder calldata order) external {
        TaskState memory t = market.task(order.task);
        vm.assume(!order.stake && order.account == t.terms.coordinator);
        vm.assume(t.terms.arbiter != order.account);
        uint256 b = market.bondOf(order.task, order.account).amount;
        uint256 slashed = market.slashedBondOf(order.task, order.account);
        uint256 treasury = market.treasury();
        vm.prank(t.terms.arbiter);
        try market.slash(order) returns (uint128 taken) {
            assert(taken != 0 && taken <= order.amount && taken <= b);
            assert(taken == order.amount || taken == b);
            assert(market.slashedBondOf(order.task, order.account) == slashed);
            assert(market.bondOf(order.task, order.account).amount == b - taken);
            assert(market.treasury() == treasury + taken);
        } catch {}
    }

    /// @dev By induction over calls: `slashed` is 0 at first, only a slash changes it.
    function check_slashes_of_other_bonds_take_at_most_bond_min(SlashOrder calldata order)
        external
    {
        TaskState memory t = market.task(order.task);
        vm.assume(!order.stake && order.account != t.terms.coordinator);
        uint256 slashed = market.slashedBondOf(order.task, order.account);
        vm.assume(slashed <= t.terms.bondMin);
        vm.prank(t.terms.arbiter);
        try market.slash(order) returns (uint128 taken) {
            assert(slashed + taken <= t.terms.bondMin);
            assert(market.slashedBondOf(order.task, order.account) == slashed + taken);
        } catch {}
    }

    /// @custom:halmos --solver z3
    function check_a_slash_of_another_bond_takes_the_amount(SlashOrder calldata order) external {
        (uint256 b, uint256 room) = otherBond(order);
        vm.assume(order.amount <= b && order.amount <= room);
        assert(slashLeaves(order, order.amount) == b - order.amount);
    }

    /// @custom:halmos --solver z3
    function check_a_slash_of_another_bond_takes_all_of_it(SlashOrder calldata order) external {
        (uint256 b, uint256 room) = otherBond(order);
        vm.assume(b < order.amount && b <= room);
        assert(slashLeaves(order, b) == 0);
    }

    function check_a_slash_of_another_bond_takes_the_rest_of_bond_min(SlashOrder calldata order)
        external
    {
        (uint256 b, uint256 room) = otherBond(order);
        vm.assume(room < order.amount && room < b);
        assert(slashLeaves(order, room) == b - room);
    }

    /// @dev A bond that covers no pay, and what its task may still slash.
    function otherBond(SlashOrder calldata order) private view returns (uint256 b, uint256 room) {
        TaskState memory t = market.task(order.task);
        vm.assume(!order.stake && order.account != t.terms.coordinator);
        uint256 slashed = market.slashedBondOf(order.task, order.account);
        vm.assume(slashed <= t.terms.bondMin);
        return (market.bondOf(order.task, order.account).amount, t.terms.bondMin - slashed);
    }

    /// @dev Slashes `expected`; returns the rest of the bond.
    function slashLeaves(SlashOrder calldata order, uint256 expected) private returns (uint256) {
        vm.prank(market.task(order.task).terms.arbiter);
        try market.slash(order) returns (uint128 taken) {
            assert(taken == expected);
        } catch {
            vm.assume(false);
        }
        return market.bondOf(order.task, order.account).amount;
    }

    function check_a_slash_of_another_bond_goes_to_the_treasury(SlashOrder calldata order) external {
        TaskState memory t = market.task(order.task);
        vm.assume(!order.stake && order.account != t.terms.coordinator);
        uint256 treasury = market.treasury();
        vm.prank(t.terms.arbiter);
        try market.slash(order) returns (uint128 taken) {
            assert(market.treasury() == treasury + taken);
        } catch {}
    }

    function check_a_bond_is_slashed_by_the_arbiter_only(SlashOrder calldata order, address sender)
        external
    {
        vm.assume(!order.stake);
        TaskState memory t = market.task(order.task);
        vm.prank(sender);
        try market.slash(order) {
            assert(sender == t.terms.arbiter);
            assert(!t.closed || (order.account == t.terms.coordinator && sender != order.account));
        } catch {}
    }

    /// @dev Each function that changes the coordinator's bond keeps the cover exact.
    function check_a_bond_covers_what_it_holds(bytes32 id, uint128 amount) external {
        TaskState memory t = market.task(id);
        vm.assume(t.terms.coordinator != t.terms.arbiter);
        vm.prank(t.terms.coordinator);
        try market.bond(id, amount) {
            assert(isCoverExact(id, t.terms.coordinator));
        } catch {}
    }

    function check_a_bond_requested_back_covers_nothing(bytes32 id, uint256 second) external {
        at(second);
        TaskState memory t = market.task(id);
        vm.assume(t.terms.coordinator != t.terms.arbiter && isCoverExact(id, t.terms.coordinator));
        vm.prank(t.terms.coordinator);
        try market.unbond(id) {
            assert(isCoverExact(id, t.terms.coordinator));
        } catch {}
    }

    function check_a_slashed_bond_covers_what_is_left(SlashOrder calldata order) external {
        TaskState memory t = market.task(order.task);
        vm.assume(!order.stake && t.terms.coordinator != t.terms.arbiter);
        vm.assume(isCoverExact(order.task, t.terms.coordinator));
        vm.prank(t.terms.arbiter);
        try market.slash(order) {
            assert(isCoverExact(order.task, t.terms.coordinator));
        } catch {}
    }

    function check_a_stake_is_returned_in_full_and_never_early(address account, uint256 second)
        external
    {
        at(second);
        vm.assume(tokenInvariant(address(market), account));
        Collateral memory b = market.stakeOf(account);
        uint256 wallet = token.balanceOf(account);
        vm.prank(account);
        try market.withdrawStake() returns (uint128 amount) {
            assert(amount == b.amount && market.stakeOf(account).amount == 0);
            assert(b.release != 0 && market.clock() >= b.release);
            assert(token.balanceOf(account) == wallet + amount);
        } catch {}
    }
}
