// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {TaskState} from "../../src/interfaces/Types.sol";
import {MarketTest} from "../MarketTest.sol";
import {Handler} from "./Handler.sol";

/// @title Invariants after every call of any history.
/// @dev FOUNDRY_PROFILE=long runs 10,000 histories of 256 calls.
contract Invariants is MarketTest {
    Handler private handler;

    function setUp() public override {
        super.setUp();
        handler = new Handler(market, token);
    }

    /// @dev forge calls only the handler.
    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function invariant_the_books_balance() external view {
        uint256 held = market.treasury();
        for (uint256 i = 0; i < 2; ++i) {
            bytes32 id = handler.tasks(i);
            TaskState memory t = market.task(id);
            uint256 posted = uint256(t.dataPaid) + t.infrastructurePaid;
            uint256 escrowed = uint256(t.terms.data) + t.terms.infrastructure;
            uint256 locked = uint256(t.dataLocked) + t.infrastructureLocked;
            vm.assertLe(handler.claimedSum(id), posted, "claimed <= posted");
            vm.assertLe(posted, escrowed, "posted <= escrowed");
            vm.assertEq(escrowed, posted + t.refunded + locked, "escrow adds up");
            vm.assertEq(t.owed, posted - handler.claimedSum(id), "owed adds up");
            held += locked + t.owed;
            for (uint256 who = 0; who < 3; ++who) {
                held += market.bondOf(id, handler.bondOwner(who)).amount;
            }
        }
        for (uint256 who = 0; who < 2; ++who) {
            held += market.stakeOf(handler.actor(who)).amount;
        }
        vm.assertEq(token.balanceOf(address(market)), held, "every unit has one owner");
        vm.assertEq(token.totalSupply(), SUPPLY, "supply constant");
    }
}
