// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {Collateral, MemberShare, TaskState} from "../../src/interfaces/Types.sol";
import {MarketTest} from "../MarketTest.sol";
import {Vm} from "../Vm.sol";
import {EventFold} from "./EventFold.sol";
import {Handler} from "./Handler.sol";

/// @title A fold over the events yields the contract's state.
contract EventsTest is MarketTest {
    uint256 private constant STEPS = 150;
    Handler private handler;
    EventFold private fold;

    function setUp() public override {
        super.setUp();
        handler = new Handler(market, token);
        fold = new EventFold();
    }

    /// forge-config: default.fuzz.runs = 48
    function testFuzz_folding_the_events_yields_the_state(uint256 seed) external {
        for (uint256 i = 0; i < STEPS; ++i) {
            seed = uint256(keccak256(abi.encode(seed)));
            vm.recordLogs();
            // Tasks are opened first; otherwise most calls would have no effect.
            if (i < 2) handler.openTask(i);
            else act(seed >> 32, seed % 24);
            Vm.Log[] memory logs = vm.getRecordedLogs();
            for (uint256 k = 0; k < logs.length; ++k) {
                if (logs[k].emitter == address(market)) fold.apply_(logs[k]);
            }
        }
        for (uint256 i = 0; i < 2; ++i) {
            compareTask(handler.tasks(i));
            compareAccount(handler.actor(i));
        }
        vm.assertEq(fold.treasury(), market.treasury(), "treasury");
    }

    function act(uint256 seed, uint256 choice) private {
        (uint256 which, uint256 who, uint256 rest) = (seed % 2, (seed >> 1) % 2, seed >> 2);
        if (choice == 0) handler.cancelFrom(which, rest);
        else if (choice == 1) handler.closeTask(which, rest);
        else if (choice == 2) handler.unbondAll(which, rest);
        else if (choice == 3) handler.withdrawBond(which, rest);
        else if (choice == 4) handler.unstakeAll(who);
        else if (choice == 5) handler.withdrawStake(who);
        else if (choice == 6) handler.slashPart(which, rest, who == 0, rest >> 2);
        else if (choice == 7) handler.pledgeTo(which, who);
        else if (choice < 10) handler.addStake(who, rest);
        else if (choice < 12) handler.addBond(which, rest, rest >> 2);
        else if (choice < 14) handler.claimFor(which, who);
        else if (choice < 16) handler.finalizeDue(which);
        else if (choice < 18) handler.postRound(which, rest);
        else if (choice == 18) handler.checkpointHead(which);
        else if (choice == 19) handler.announceClose(which);
        else if (choice == 20) handler.objectToClose(which, uint64(rest % 3), rest >> 2);
        else if (choice == 21) handler.splitPay(which, who, rest);
        else handler.wait(rest);
    }

    function compareTask(bytes32 id) private view {
        TaskState memory folded = fold.task(id);
        TaskState memory stored = market.task(id);
        vm.assertEq(folded.head, stored.head, "head");
        vm.assertEq(folded.finalHead, stored.finalHead, "final head");
        vm.assertEq(folded.checkpoint, stored.checkpoint, "checkpoint");
        vm.assertEq(abi.encode(folded), abi.encode(stored), "the whole task");
        for (uint256 i = 0; i < 3; ++i) {
            address who = handler.bondOwner(i);
            (uint128 paid, uint128 debited) = market.claimed(id, who);
            vm.assertEq(fold.paid(id, who), paid, "paid");
            vm.assertEq(fold.debited(id, who), debited, "debited");
            MemberShare[] memory split = market.splitOf(id, who);
            bytes memory encoded = split.length == 0 ? bytes("") : abi.encode(split);
            vm.assertEq(fold.splits(id, who), encoded, "split");
            Collateral memory held = market.bondOf(id, who);
            vm.assertEq(fold.bonds(id, who), held.amount, "bond");
            vm.assertEq(fold.bondReleases(id, who), held.release, "bond's release");
            vm.assertTrue(fold.pledged(id, who) == market.pledged(id, who), "pledge");
            vm.assertEq(fold.slashedOf(id, who), market.slashedOf(id, who), "slashed");
            if (i == 2) continue;
            vm.assertEq(fold.slashedBondOf(id, who), market.slashedBondOf(id, who), "of the bond");
        }
    }

    function compareAccount(address who) private view {
        Collateral memory held = market.stakeOf(who);
        vm.assertEq(fold.stakes(who), held.amount, "stake");
        vm.assertEq(fold.stakeReleases(who), held.release, "stake's release");
    }
}
