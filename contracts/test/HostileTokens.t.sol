// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ReentrancyGuardTransient} from
    "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {IMarket} from "../src/interfaces/IMarket.sol";
import {IMarketErrors} from "../src/interfaces/IMarketErrors.sol";
import {Claim, MemberShare, Terms} from "../src/interfaces/Types.sol";
import {MarketTest} from "./MarketTest.sol";
import {CallForwarder, FalseToken, FeeToken, HookToken, NoReturnToken} from "./mocks/Tokens.sol";

/// @title Hostile tokens and hooks cause no losses.
contract HostileTokensTest is MarketTest {
    HookToken private hook;
    CallForwarder private forwarder;

    function stakeHere(address account, uint256 amount) private {
        vm.prank(account);
        market.stake(uint128(amount));
    }

    function test_a_fee_on_transfer_token_is_refused() external {
        deployMarket(IERC20(address(new FeeToken())));
        bytes memory expected = abi.encodeWithSelector(
            IMarketErrors.TransferAmountMismatch.selector, 1_200 * FLN, 1_188 * FLN
        );
        expectError(expected);
        openTask();
        expected = abi.encodeWithSelector(IMarketErrors.TransferAmountMismatch.selector, 100, 99);
        expectError(expected);
        stakeHere(ada, 100);
    }

    function test_a_transfer_that_returns_false_reverts_and_keeps_the_claim() external {
        FalseToken falseToken = new FalseToken();
        deployMarket(IERC20(address(falseToken)));
        openTask();
        settle(1, 30, 0, 20);
        falseToken.startFailing();
        bytes memory failed = abi.encodeWithSelector(
            SafeERC20.SafeERC20FailedOperation.selector, address(falseToken)
        );
        expectError(failed);
        stakeHere(ada, 100);
        Claim memory c = adasClaim(30, 0, 20);
        expectError(failed);
        claim(c);
        vm.assertEq(task().owed, 50, "still owed");
    }

    function test_a_token_without_return_values_works() external {
        NoReturnToken noReturn = new NoReturnToken();
        // `fund` reads a return value, which this token does not have.
        token = IERC20(address(noReturn));
        market = IMarket(vm.deployCode("Market.sol:Market", abi.encode(token)));
        address[2] memory payers = [buyer, coordinator];
        for (uint256 i = 0; i < 2; ++i) {
            noReturn.transfer(payers[i], 10_000 * FLN);
            vm.prank(payers[i]);
            noReturn.approve(address(market), type(uint256).max);
        }
        openTask();
        settle(1, 30, 0, 20);
        claim(adasClaim(30, 0, 20));
        vm.assertEq(noReturn.balanceOf(ada), 30, "paid");
    }

    // --------------------------------------------------------------------------------------- hooks

    /// @dev A market with a hook token; the forwarder has a balance and a claim of 30 in round 1.
    function deployHookMarket() private {
        hook = new HookToken();
        deployMarket(hook);
        forwarder = new CallForwarder();
        hook.transfer(address(forwarder), 1_000 * FLN);
        forwarder.forward(
            address(token), abi.encodeCall(token.approve, (address(market), type(uint256).max))
        );
        ada = address(forwarder);
        openTask();
    }

    function forwarded(bytes memory data) private view returns (bytes memory) {
        return abi.encodeCall(CallForwarder.forward, (address(market), data));
    }

    function assertReentrancyRejected() private view {
        vm.assertFalse(hook.succeeded(), "the inner call was refused");
        bytes memory guard = abi.encodeWithSelector(
            ReentrancyGuardTransient.ReentrancyGuardReentrantCall.selector
        );
        bytes memory reason = abi.encodeWithSelector(CallForwarder.CallFailed.selector, guard);
        vm.assertEq(hook.answer(), reason, "by the guard");
    }

    /// @dev The outer transfer moves nothing, and the inner deposit is what arrives: without a
    /// guard both would count it.
    function test_one_deposit_is_not_counted_twice() external {
        deployHookMarket();
        bytes[4] memory inner = [
            forwarded(abi.encodeCall(market.stake, (uint128(100 * FLN)))),
            forwarded(abi.encodeCall(market.bond, (TASK, uint128(100 * FLN)))),
            forwarded(abi.encodeCall(market.openTask, (forwarderTerms()))),
            forwarded(abi.encodeCall(market.withdrawStake, ()))
        ];
        for (uint256 i = 0; i < inner.length; ++i) {
            hook.setHooks(address(forwarder), address(0), inner[i], true);
            expectError(
                abi.encodeWithSelector(IMarketErrors.TransferAmountMismatch.selector, 100 * FLN, 0)
            );
            stakeHere(ben, 100 * FLN);
            hook.setHooks(address(forwarder), address(0), inner[i], false);
            stakeHere(ben, 100 * FLN);
            assertReentrancyRejected();
        }
        vm.assertEq(
            token.balanceOf(address(market)), 1_600 * FLN, "a task and four stakes, no more"
        );
    }

    function forwarderTerms() private view returns (Terms memory t) {
        t = terms("forwarder's");
        t.buyer = address(forwarder);
        t.data = uint128(100 * FLN);
        t.infrastructure = 0;
    }

    function test_a_claim_that_re_enters_is_paid_once() external {
        deployHookMarket();
        settle(1, 30 * FLN, 0, 20 * FLN);
        bytes memory inner = forwarded(claimCall(adasClaim(30 * FLN, 0, 20 * FLN)));
        for (uint256 i = 0; i < 2; ++i) {
            uint256 snapshot = vm.snapshotState();
            if (i == 0) hook.setHooks(address(forwarder), address(0), inner, false);
            else hook.setHooks(address(0), address(forwarder), inner, false);
            uint256 before = token.balanceOf(ada);
            claim(adasClaim(30 * FLN, 0, 20 * FLN));
            vm.assertFalse(hook.succeeded(), "nothing is left to claim");
            vm.assertEq(token.balanceOf(ada) - before, 30 * FLN, "once");
            vm.assertEq(task().owed, 20 * FLN, "Ben's");
            vm.revertToState(snapshot);
        }
    }

    /// @dev A member that re-enters claims nothing twice, and no split can change the payments that
    /// are under way.
    function test_a_member_that_re_enters_is_paid_once() external {
        deployHookMarket();
        MemberShare[] memory list = new MemberShare[](2);
        list[0] = MemberShare(address(0x1001), 400_000);
        list[1] = MemberShare(address(forwarder), 600_000);
        if (list[1].member < list[0].member) (list[0], list[1]) = (list[1], list[0]);
        uint256 own = list[0].member == address(forwarder) ? list[0].share : list[1].share;
        forwarder.forward(address(market), abi.encodeCall(market.setSplit, (TASK, list)));
        settle(1, 30 * FLN, 0, 20 * FLN);
        MemberShare[] memory all = new MemberShare[](1);
        all[0] = MemberShare(address(forwarder), 1_000_000);
        bytes[2] memory inner = [
            forwarded(claimCall(adasClaim(30 * FLN, 0, 20 * FLN))),
            forwarded(abi.encodeCall(market.setSplit, (TASK, all)))
        ];
        for (uint256 i = 0; i < 4; ++i) {
            uint256 snapshot = vm.snapshotState();
            if (i < 2) hook.setHooks(address(forwarder), address(0), inner[i], false);
            else hook.setHooks(address(0), address(forwarder), inner[i - 2], false);
            uint256 before = token.balanceOf(ada);
            claim(adasClaim(30 * FLN, 0, 20 * FLN));
            vm.assertFalse(hook.succeeded(), "the inner call was refused");
            vm.assertEq(token.balanceOf(ada) - before, 30 * FLN * own / 1_000_000, "once");
            vm.assertEq(token.balanceOf(address(0x1001)), 12 * FLN, "and the other member");
            vm.assertEq(task().owed, 20 * FLN, "Ben's");
            vm.revertToState(snapshot);
        }
    }

    function test_a_bond_and_a_stake_are_returned_once() external {
        deployHookMarket();
        forwarder.forward(address(market), abi.encodeCall(market.bond, (TASK, uint128(10 * FLN))));
        forwarder.forward(address(market), abi.encodeCall(market.stake, (uint128(10 * FLN))));
        stakeHere(ben, 500 * FLN);
        forwarder.forward(address(market), abi.encodeCall(market.unbond, (TASK)));
        forwarder.forward(address(market), abi.encodeCall(market.unstake, ()));
        advance(DELAY);
        bytes memory withdraw = abi.encodeCall(market.withdrawBond, (TASK));
        for (uint256 i = 0; i < 2; ++i) {
            hook.setHooks(address(forwarder), address(forwarder), forwarded(withdraw), false);
            uint256 before = token.balanceOf(ada);
            forwarder.forward(address(market), withdraw);
            vm.assertEq(token.balanceOf(ada) - before, 10 * FLN, "once");
            assertReentrancyRejected();
            withdraw = abi.encodeCall(market.withdrawStake, ());
        }
    }

    function test_a_claim_within_a_deposit_gains_nothing() external {
        deployHookMarket();
        settle(1, 30 * FLN, 0, 20 * FLN);
        bytes memory inner = forwarded(claimCall(adasClaim(30 * FLN, 0, 20 * FLN)));
        hook.setHooks(address(forwarder), address(0), inner, false);
        expectError(
            abi.encodeWithSelector(
                IMarketErrors.TransferAmountMismatch.selector, 100 * FLN, 70 * FLN
            )
        );
        stakeHere(ben, 100 * FLN);
        vm.assertEq(task().owed, 50 * FLN, "unchanged");
    }
}
