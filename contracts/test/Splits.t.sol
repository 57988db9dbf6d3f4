// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarketErrors} from "../src/interfaces/IMarketErrors.sol";
import {Claim, MemberShare, PostedSettlement} from "../src/interfaces/Types.sol";
import {MarketTest} from "./MarketTest.sol";
import {Tree} from "./Tree.sol";

/// @title Splits of pay among members.
contract SplitsTest is MarketTest {
    uint256 private constant TURN = 1_000_000;
    address private constant FIRST = address(0x1001);
    address private constant SECOND = address(0x1002);

    function setUp() public override {
        super.setUp();
        openTask();
    }

    /// @dev Half for the first, a fifth for the second, the rest for Ada's own wallet.
    function members() private view returns (MemberShare[] memory list) {
        list = new MemberShare[](3);
        list[0] = MemberShare(ada, 500_000);
        list[1] = MemberShare(FIRST, 200_000);
        list[2] = MemberShare(SECOND, 300_000);
    }

    function setSplit(address account, MemberShare[] memory list) private {
        vm.prank(account);
        market.setSplit(TASK, list);
    }

    function expectInvalid(MemberShare[] memory list, string memory reason) private {
        expectError(abi.encodeWithSelector(IMarketErrors.SplitInvalid.selector, reason));
        setSplit(ada, list);
    }

    function expectFixed(address account, MemberShare[] memory list) private {
        expectError(
            abi.encodeWithSelector(IMarketErrors.SplitFixed.selector, TASK, account)
        );
        setSplit(account, list);
    }

    function expectTooLate(address account) private {
        expectError(
            abi.encodeWithSelector(IMarketErrors.SplitTooLate.selector, TASK, account)
        );
        setSplit(account, members());
    }

    // ----------------------------------------------------------------------------------------- set

    function test_a_split_is_stored_and_cannot_change() external {
        vm.assertEq(market.splitOf(TASK, ada).length, 0, "none yet");
        setSplit(ada, members());
        vm.assertEq(
            abi.encode(market.splitOf(TASK, ada)), abi.encode(members()), "as it was set"
        );
        vm.assertEq(market.splitOf(TASK, ben).length, 0, "of this account");
        vm.assertEq(market.splitOf("other", ada).length, 0, "and of this task");
        setSplit(ada, members());
        bond(ada, 10 * FLN);
        setSplit(ada, members());
        MemberShare[] memory other = members();
        (other[0].share, other[1].share) = (400_000, 300_000);
        expectFixed(ada, other);
        other = members();
        other[2].member = address(0x1003);
        expectFixed(ada, other);
        other = new MemberShare[](1);
        other[0] = MemberShare(ada, 1_000_000);
        expectFixed(ada, other);
        vm.assertEq(
            abi.encode(market.splitOf(TASK, ada)), abi.encode(members()), "unchanged"
        );
    }

    function test_a_list_that_is_no_split_is_refused() external {
        string memory order = "ascending, with shares above 0";
        string memory sum = "shares add up to 1,000,000";
        expectInvalid(new MemberShare[](0), sum);
        MemberShare[] memory list = members();
        list[2].share = 299_999;
        expectInvalid(list, sum);
        list[2].share = 300_001;
        expectInvalid(list, sum);
        // No sum wraps.
        list[2].share = type(uint32).max;
        expectInvalid(list, sum);
        (list[1].share, list[2].share) = (0, 500_000);
        expectInvalid(list, order);
        list = members();
        (list[1], list[2]) = (list[2], list[1]);
        expectInvalid(list, order);
        list = members();
        list[2].member = FIRST;
        expectInvalid(list, order);
        list = members();
        list[0].member = address(0);
        expectInvalid(list, order);
        list = new MemberShare[](65);
        expectError(
            abi.encodeWithSelector(IMarketErrors.LimitExceeded.selector, "64 members in a split")
        );
        setSplit(ada, list);
        vm.assertEq(market.splitOf(TASK, ada).length, 0, "none was stored");
    }

    function test_sixty_four_members_are_paid() external {
        MemberShare[] memory list = crowd();
        setSplit(ada, list);
        settle(2, 64 * FLN, 0, 0);
        vm.assertEq(claim(adasClaim(64 * FLN, 0, 0)), 64 * FLN, "in total");
        for (uint256 i = 0; i < 64; ++i) {
            vm.assertEq(token.balanceOf(list[i].member), FLN, "a 64th each");
        }
    }

    function crowd() private pure returns (MemberShare[] memory list) {
        list = new MemberShare[](64);
        for (uint160 i = 0; i < 64; ++i) {
            list[i] = MemberShare(address(0x1000 + i), 15_625);
        }
    }

    function test_a_split_is_set_before_the_account_takes_part() external {
        bond(ben, 10 * FLN);
        expectTooLate(ben);
        vm.prank(ben);
        market.unbond(TASK);
        expectTooLate(ben);
        advance(DELAY);
        vm.prank(ben);
        market.withdrawBond(TASK);
        settle(1, 5, 0, 0);
        claim(adasClaim(5, 0, 0));
        expectTooLate(ada);
        settle(2, 5, 1, 0);
        claim(adasClaim(5, 1, 0));
        expectTooLate(ada);
        // Ben has returned its bond without pay.
        setSplit(ben, members());
    }

    function test_a_debit_alone_is_taking_part() external {
        settle(1, 0, 1, 5);
        claim(adasClaim(0, 1, 5));
        expectTooLate(ada);
    }

    function test_the_task_must_be_open() external {
        expectError(abi.encodeWithSelector(IMarketErrors.UnknownTask.selector, bytes32("other")));
        vm.prank(ada);
        market.setSplit("other", members());
        closeAnnounced(TASK);
        expectError(abi.encodeWithSelector(IMarketErrors.TaskClosed.selector, TASK));
        setSplit(ada, members());
    }

    // --------------------------------------------------------------------------------------- claim

    function test_a_claim_pays_the_members_and_debits_the_silo() external {
        setSplit(ada, members());
        bond(ada, 10 * FLN);
        uint256 adaBefore = token.balanceOf(ada);
        settle(1, 1_700_001, 5, 20 * FLN);
        Claim memory c = adasClaim(1_700_001, 5, 20 * FLN);
        vm.prank(stranger);
        vm.assertEq(claim(c), 1_700_001, "in total");
        vm.assertEq(token.balanceOf(ada) - adaBefore, 1_000_000, "half of two turns");
        vm.assertEq(token.balanceOf(FIRST), 400_000, "a fifth of two turns");
        vm.assertEq(token.balanceOf(SECOND), 300_001, "of one turn, and one unit");
        vm.assertEq(market.bondOf(TASK, ada).amount, 10 * FLN - 5, "the debit is the silo's");
        vm.assertEq(market.treasury(), 5, "treasury");
        (uint128 paid, uint128 debited) = market.claimed(TASK, ada);
        vm.assertEq(paid, 1_700_001, "the totals stay the silo's");
        vm.assertEq(debited, 5, "both");
        expectError(abi.encodeWithSelector(IMarketErrors.NothingToClaim.selector));
        claim(c);
        vm.assertEq(task().owed, 20 * FLN, "Ben's");
        vm.assertEq(market.splitOf(TASK, ada).length, 3, "the split is still there");
    }

    function test_claim_many_pays_each_split() external {
        setSplit(ada, members());
        MemberShare[] memory bens = new MemberShare[](1);
        bens[0] = MemberShare(FIRST, 1_000_000);
        setSplit(ben, bens);
        uint256 benBefore = token.balanceOf(ben);
        settle(1, 3 * FLN, 0, 2 * FLN);
        Claim[] memory both = new Claim[](2);
        (both[0], both[1]) = (adasClaim(3 * FLN, 0, 2 * FLN), bensClaim(3 * FLN, 0, 2 * FLN));
        uint128[] memory paid = market.claimMany(both);
        vm.assertEq(uint256(paid[0]) + paid[1], 5 * FLN, "in total");
        vm.assertEq(token.balanceOf(FIRST), 2 * FLN + 3 * FLN / 5, "of both");
        vm.assertEq(token.balanceOf(ben), benBefore, "not to Ben");
    }

    // -------------------------------------------------------------------------------------- fuzzed

    /// @dev Any shares, and claims after any increases, pay what one claim at the end would pay, and
    /// what the dealing of single units gives for the last turn.
    function testFuzz_members_receive_their_units(uint32[4] memory cuts, uint96[3] memory more)
        external
    {
        MemberShare[] memory list = sharesOf(cuts);
        setSplit(ada, list);
        uint256 total = 0;
        for (uint32 i = 0; i < 3; ++i) {
            total += 1 + more[i] % (i == 0 ? 3 * TURN : 15 * FLN);
            settle(i + 18, total, 0, 0);
            claim(adasClaim(total, 0, 0));
            uint256 start = 0;
            uint256 sum = 0;
            for (uint256 k = 0; k < list.length; ++k) {
                uint256 due = owned(total, start, list[k].share);
                vm.assertEq(token.balanceOf(list[k].member), due, "its units");
                start += list[k].share;
                sum += due;
            }
            vm.assertEq(sum, total, "no unit is left");
        }
    }

    /// @dev Units `n < total` with `start <= n % TURN < start + share`.
    function owned(uint256 total, uint256 start, uint256 share) private pure returns (uint256) {
        uint256 begun = total % TURN;
        uint256 inTurn = begun <= start ? 0 : begun - start < share ? begun - start : share;
        return total / TURN * share + inTurn;
    }

    function sharesOf(uint32[4] memory cuts) private pure returns (MemberShare[] memory list) {
        list = new MemberShare[](5);
        uint32 left = 1_000_000;
        for (uint160 i = 0; i < 5; ++i) {
            uint32 share = i == 4 ? left : 1 + cuts[i] % (left - uint32(4 - i));
            list[i] = MemberShare(address(0x2000 + i), share);
            left -= share;
        }
    }
}
