// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {MemberShare} from "../src/interfaces/Types.sol";
import {SymbolicMarket} from "./SymbolicMarket.sol";

/// @title Splits are set once, before any pay.
/// @dev The members' payments are not proven: the solver ends with no division of two unknown totals by a
/// turn within a quarter of an hour. `test/Splits.t.sol` fuzzes them.
contract SplitProofs is SymbolicMarket {
    function check_a_split_cannot_change(bytes32 id, MemberShare calldata a, MemberShare calldata b)
        external
    {
        vm.assume(membersOf(id, address(this)) == 2);
        MemberShare[] memory before = market.splitOf(id, address(this));
        MemberShare[] memory list = new MemberShare[](2);
        (list[0], list[1]) = (a, b);
        try market.setSplit(id, list) {} catch {}
        MemberShare[] memory afterwards = market.splitOf(id, address(this));
        assert(keccak256(abi.encode(before)) == keccak256(abi.encode(afterwards)));
    }

    function check_no_split_is_set_behind_pay(bytes32 id, MemberShare calldata a) external {
        (uint128 paid, uint128 debited) = market.claimed(id, address(this));
        vm.assume(membersOf(id, address(this)) == 0 && (paid != 0 || debited != 0));
        MemberShare[] memory list = new MemberShare[](1);
        list[0] = a;
        try market.setSplit(id, list) {
            assert(false);
        } catch {}
    }
}
