// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ReentrancyGuardTransient} from
    "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {IMarket} from "../src/interfaces/IMarket.sol";
import {IRefusals} from "../src/interfaces/IRefusals.sol";
import {Claim, Terms} from "../src/interfaces/Types.sol";
import {World} from "./World.sol";
import {FalseToken, FeeToken, HookToken, Puppet, SilentToken} from "./mocks/Tokens.sol";

/// @title Hostile tokens and hooks cause no losses.
contract HostileTest is World {
    HookToken private hook;
    Puppet private puppet;

    function stakeHere(address account, uint256 amount) private {
        vm.prank(account);
        market.stake(uint128(amount));
    }

    function test_a_fee_on_transfer_token_is_refused() external {
        begin(IERC20(address(new FeeToken())));
        bytes memory refusal = abi.encodeWithSelector(
            IRefusals.WrongArrival.selector, 1_200 * FLN, 1_188 * FLN
        );
        refuses(refusal);
        open();
        refusal = abi.encodeWithSelector(IRefusals.WrongArrival.selector, 100, 99);
        refuses(refusal);
        stakeHere(ada, 100);
    }

    function test_a_transfer_that_returns_false_reverts_and_keeps_the_claim() external {
        FalseToken liar = new FalseToken();
        begin(IERC20(address(liar)));
        open();
        settle(1, 30, 0, 20);
        liar.lie();
        bytes memory failed =
            abi.encodeWithSelector(SafeERC20.SafeERC20FailedOperation.selector, address(liar));
        refuses(failed);
        stakeHere(ada, 100);
        Claim memory c = adasClaim(30, 0, 20);
        refuses(failed);
        claim(c);
        vm.assertEq(task().owed, 50, "still owed");
    }

    function test_a_token_without_return_values_works() external {
        SilentToken silent = new SilentToken();
        // `give` reads a return value, which this token does not have.
        token = IERC20(address(silent));
        market = IMarket(vm.deployCode("Market.sol:Market", abi.encode(token)));
        silent.transfer(buyer, 10_000 * FLN);
        vm.prank(buyer);
        silent.approve(address(market), type(uint256).max);
        open();
        settle(1, 30, 0, 20);
        claim(adasClaim(30, 0, 20));
        vm.assertEq(silent.balanceOf(ada), 30, "paid");
    }

    // --------------------------------------------------------------------------------------- hooks

    /// @dev A market with a hook token; the puppet has a balance and a claim of 30 in round 1.
    function haunted() private {
        hook = new HookToken();
        begin(hook);
        puppet = new Puppet();
        hook.transfer(address(puppet), 1_000 * FLN);
        puppet.act(
            address(token), abi.encodeCall(token.approve, (address(market), type(uint256).max))
        );
        ada = address(puppet);
        open();
    }

    function puppetCalls(bytes memory data) private view returns (bytes memory) {
        return abi.encodeCall(Puppet.act, (address(market), data));
    }

    function refusedReentrancy() private view {
        vm.assertFalse(hook.succeeded(), "the inner call was refused");
        bytes memory guard = abi.encodeWithSelector(
            ReentrancyGuardTransient.ReentrancyGuardReentrantCall.selector
        );
        bytes memory why = abi.encodeWithSelector(Puppet.Refused.selector, guard);
        vm.assertEq(hook.answer(), why, "by the guard");
    }

    /// @dev The outer transfer moves nothing, and the inner deposit is what arrives: without a
    /// guard both would count it.
    function test_one_deposit_is_not_counted_twice() external {
        haunted();
        bytes[4] memory inner = [
            puppetCalls(abi.encodeCall(market.stake, (uint128(100 * FLN)))),
            puppetCalls(abi.encodeCall(market.bond, (TASK, uint128(100 * FLN)))),
            puppetCalls(abi.encodeCall(market.openTask, (puppetTerms()))),
            puppetCalls(abi.encodeCall(market.withdrawStake, ()))
        ];
        for (uint256 i = 0; i < inner.length; ++i) {
            hook.plant(address(puppet), address(0), inner[i], true);
            refuses(
                abi.encodeWithSelector(IRefusals.WrongArrival.selector, 100 * FLN, 0)
            );
            stakeHere(ben, 100 * FLN);
            hook.plant(address(puppet), address(0), inner[i], false);
            stakeHere(ben, 100 * FLN);
            refusedReentrancy();
        }
        vm.assertEq(
            token.balanceOf(address(market)), 1_600 * FLN, "a task and four stakes, no more"
        );
    }

    function puppetTerms() private view returns (Terms memory t) {
        t = terms("puppet's");
        t.buyer = address(puppet);
        t.data = uint128(100 * FLN);
        t.infrastructure = 0;
    }

    function test_a_claim_that_re_enters_is_paid_once() external {
        haunted();
        settle(1, 30 * FLN, 0, 20 * FLN);
        bytes memory inner = puppetCalls(claimCall(adasClaim(30 * FLN, 0, 20 * FLN)));
        for (uint256 i = 0; i < 2; ++i) {
            uint256 snapshot = vm.snapshotState();
            if (i == 0) hook.plant(address(puppet), address(0), inner, false);
            else hook.plant(address(0), address(puppet), inner, false);
            uint256 before = token.balanceOf(ada);
            claim(adasClaim(30 * FLN, 0, 20 * FLN));
            vm.assertFalse(hook.succeeded(), "nothing is left to claim");
            vm.assertEq(token.balanceOf(ada) - before, 30 * FLN, "once");
            vm.assertEq(task().owed, 20 * FLN, "Ben's");
            vm.revertToState(snapshot);
        }
    }

    function test_a_bond_and_a_stake_are_returned_once() external {
        haunted();
        puppet.act(address(market), abi.encodeCall(market.bond, (TASK, uint128(10 * FLN))));
        puppet.act(address(market), abi.encodeCall(market.stake, (uint128(10 * FLN))));
        stakeHere(ben, 500 * FLN);
        puppet.act(address(market), abi.encodeCall(market.unbond, (TASK)));
        puppet.act(address(market), abi.encodeCall(market.unstake, ()));
        pass(DELAY);
        bytes memory withdraw = abi.encodeCall(market.withdrawBond, (TASK));
        for (uint256 i = 0; i < 2; ++i) {
            hook.plant(address(puppet), address(puppet), puppetCalls(withdraw), false);
            uint256 before = token.balanceOf(ada);
            puppet.act(address(market), withdraw);
            vm.assertEq(token.balanceOf(ada) - before, 10 * FLN, "once");
            refusedReentrancy();
            withdraw = abi.encodeCall(market.withdrawStake, ());
        }
    }

    function test_a_claim_within_a_deposit_gains_nothing() external {
        haunted();
        settle(1, 30 * FLN, 0, 20 * FLN);
        bytes memory inner = puppetCalls(claimCall(adasClaim(30 * FLN, 0, 20 * FLN)));
        hook.plant(address(puppet), address(0), inner, false);
        refuses(
            abi.encodeWithSelector(IRefusals.WrongArrival.selector, 100 * FLN, 70 * FLN)
        );
        stakeHere(ben, 100 * FLN);
        vm.assertEq(task().owed, 50 * FLN, "unchanged");
    }
}
