// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarket} from "../interfaces/IMarket.sol";
import {MemberShare} from "../interfaces/Types.sol";
import {Limits} from "./Limits.sol";
import {MarketStorage} from "./MarketStorage.sol";

/// @title Splits: an account divides its pay in a task among members, once and before it takes part.
abstract contract Splits is MarketStorage {
    /// @inheritdoc IMarket
    function setSplit(bytes32 id, MemberShare[] calldata members) external {
        if (_existingTask(id).progress.closed) revert TaskClosed(id);
        uint256 count = members.length;
        if (count > Limits.SPLIT_MEMBERS_MAX) revert LimitExceeded("64 members in a split");
        Account storage account_ = _accounts[id][msg.sender];
        uint256 held = account_.claimed.members;
        bool same = held == count;
        address previous = address(0);
        uint256 whole = 0;
        for (uint256 i = 0; i < count; ++i) {
            MemberShare calldata next = members[i];
            if (next.member <= previous || next.share == 0) {
                revert SplitInvalid("ascending, with shares above 0");
            }
            previous = next.member;
            // At most 64 shares of 32 bits.
            unchecked {
                whole += next.share;
            }
            MemberShare storage entry = account_.split[i];
            if (held == 0) (entry.member, entry.share) = (next.member, next.share);
            else same = same && entry.member == next.member && entry.share == next.share;
        }
        if (whole != Limits.SPLIT_TURN) revert SplitInvalid("shares add up to 1,000,000");
        if (held != 0) {
            if (same) return;
            revert SplitFixed(id, msg.sender);
        }
        // Before the first claim, so that a member's total follows from the account's total.
        ClaimedTotals storage claimed_ = account_.claimed;
        if (account_.bond.amount != 0 || claimed_.paid != 0 || claimed_.debited != 0) {
            revert SplitTooLate(id, msg.sender);
        }
        claimed_.members = uint32(count);
        emit SplitSet(id, msg.sender, members);
    }

    /// @inheritdoc IMarket
    function splitOf(bytes32 id, address account)
        external
        view
        returns (MemberShare[] memory members)
    {
        Account storage account_ = _accounts[id][account];
        members = new MemberShare[](account_.claimed.members);
        for (uint256 i = 0; i < members.length; ++i) {
            members[i] = account_.split[i];
        }
    }
}
