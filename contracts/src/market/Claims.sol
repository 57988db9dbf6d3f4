// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {IMarket} from "../interfaces/IMarket.sol";
import {Claim, MemberShare} from "../interfaces/Types.sol";
import {Limits} from "./Limits.sol";
import {MarketStorage} from "./MarketStorage.sol";

/// @title Claims: pay an account, or the members of its split, and debit its bond by Merkle proof
/// against the final root. Any account may send a claim.
abstract contract Claims is MarketStorage {
    /// @inheritdoc IMarket
    /// @dev No reentrancy guard: all state is written before the transfers, which are the last
    /// actions.
    function claim(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited,
        bytes32[] calldata proof
    ) external returns (uint128 amount) {
        uint256 members;
        (amount, members) = _claim(id, account, paid, debited, proof);
        if (members == 0) _send(account, amount);
        else _pay(_accounts[id][account], paid, amount, members);
    }

    /// @inheritdoc IMarket
    function claimMany(Claim[] calldata items) external returns (uint128[] memory amounts) {
        if (items.length > Limits.CLAIMS_MAX) revert LimitExceeded("256 claims in one call");
        amounts = new uint128[](items.length);
        for (uint256 i = 0; i < items.length; ++i) {
            Claim calldata item = items[i];
            uint256 members;
            (amounts[i], members) =
                _claim(item.task, item.account, item.paid, item.debited, item.proof);
            if (members == 0) _send(item.account, amounts[i]);
            else _pay(_accounts[item.task][item.account], item.paid, amounts[i], members);
        }
    }

    /// @inheritdoc IMarket
    function claimed(bytes32 id, address account)
        external
        view
        returns (uint128 paid, uint128 debited)
    {
        ClaimedTotals storage totals = _accounts[id][account].claimed;
        return (totals.paid, totals.debited);
    }

    /// @dev Pays the increase of an account's total to the members of its split, which cannot change
    /// any more. At most SPLIT_MEMBERS_MAX transfers, the last actions of a call.
    function _pay(Account storage account_, uint256 paid, uint256 amount, uint256 members)
        private
    {
        uint256 upper = 0;
        uint256 sent = 0;
        for (uint256 i = 0; i < members; ++i) {
            MemberShare memory next = account_.split[i];
            uint256 due;
            // Totals fit into 96 bits, shares add up to 1,000,000, and `_dealt` grows with both of
            // its arguments.
            unchecked {
                upper += next.share;
                // The payments of all members up to this one, minus the earlier ones.
                due = _dealt(paid, upper) - _dealt(paid - amount, upper) - sent;
                sent += due;
            }
            _send(next.member, due);
        }
    }

    /// @dev The units among the first `total` that fall into the first `upper` of their turn.
    function _dealt(uint256 total, uint256 upper) private pure returns (uint256) {
        // At most `total`, because `upper` is at most a turn.
        unchecked {
            uint256 begun = total % Limits.SPLIT_TURN;
            return total / Limits.SPLIT_TURN * upper + (begun < upper ? begun : upper);
        }
    }

    /// @dev Everything except the transfers. `members` is the length of the account's split.
    function _claim(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited,
        bytes32[] calldata proof
    ) private returns (uint128 amount, uint256 members) {
        Task storage task_ = _tasks[id];
        Claimable storage claimable = task_.claimable;
        (uint96 owed, bytes20 tag) = (claimable.owed, claimable.tag);
        if (_root(account, paid, debited, proof) != tag || tag == 0) {
            _existingTask(id);
            revert InvalidProof();
        }
        Account storage account_ = _accounts[id][account];
        ClaimedTotals storage claimed_ = account_.claimed;
        (uint256 paidBefore, uint128 debitedBefore) = (claimed_.paid, claimed_.debited);
        members = claimed_.members;
        if (paid < paidBefore) revert InvalidSettlement(task_.round, "the pay decreases");
        if (debited != debitedBefore) _debit(id, account, debited, debitedBefore);
        else if (paid == paidBefore) revert NothingToClaim();
        // Checked above; owed amounts fit into 96 bits.
        unchecked {
            if (paid - paidBefore > owed) {
                revert InvalidSettlement(task_.round, "the pay exceeds the owed amount");
            }
            amount = uint128(paid - paidBefore);
        }
        // No account is paid more than was owed, at most 2^96 - 1; `_debit` has checked the debits.
        claimed_.paid = uint96(paid);
        claimed_.debited = uint128(debited);
        if (amount == 0) return (0, members);
        unchecked {
            // Writes both parts of the slot, which avoids another read.
            (claimable.owed, claimable.tag) = (owed - uint96(amount), tag);
        }
        emit Claimed(id, account, uint128(paid));
    }

    /// @dev A debit that exceeds the bond is not carried over to a later bond.
    function _debit(bytes32 id, address account, uint256 debited, uint128 before) private {
        Task storage task_ = _tasks[id];
        if (debited < before) revert InvalidSettlement(task_.round, "the debits decrease");
        // The coordinator chooses the numbers of rounds, but not the number of final settlements.
        uint256 limit = uint256(task_.debitMax) * task_.finalised;
        if (debited > limit || debited > type(uint128).max) {
            revert InvalidSettlement(
                task_.round, "the debits exceed debitMax for each final settlement"
            );
        }
        Bond storage bond_ = _accounts[id][account].bond;
        uint256 more = debited - before;
        uint128 amount = more < bond_.amount ? uint128(more) : bond_.amount;
        bond_.amount -= amount;
        _updateCover(task_, account, bond_);
        _toTreasury(amount);
        emit Debited(id, account, uint128(debited), amount);
    }

    /// @dev A leaf of OpenZeppelin's standard tree is hashed twice, so that no inner node can pass
    /// for a leaf.
    function _root(address account, uint256 paid, uint256 debited, bytes32[] calldata proof)
        private
        pure
        returns (bytes20)
    {
        if (proof.length > Limits.PROOF_LENGTH_MAX) return 0;
        bytes32 leaf = keccak256(abi.encode(account, paid, debited));
        leaf = keccak256(abi.encode(leaf));
        return bytes20(MerkleProof.processProofCalldata(proof, leaf));
    }
}
