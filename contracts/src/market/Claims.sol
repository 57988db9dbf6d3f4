// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {IMarket} from "../interfaces/IMarket.sol";
import {Claim} from "../interfaces/Types.sol";
import {Limits} from "./Limits.sol";
import {MarketStorage} from "./MarketStorage.sol";

/// @title Claims: pay an account and debit its bond by Merkle proof against the final root. Any
/// account may send a claim.
abstract contract Claims is MarketStorage {
    /// @inheritdoc IMarket
    /// @dev No reentrancy guard: all state is written before the transfer, which is the last
    /// action.
    function claim(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited,
        bytes32[] calldata proof
    ) external returns (uint128 amount) {
        amount = _claim(id, account, paid, debited, proof);
        _send(account, amount);
    }

    /// @inheritdoc IMarket
    function claimMany(Claim[] calldata items) external returns (uint128[] memory amounts) {
        if (items.length > Limits.CLAIMS_MAX) revert LimitExceeded("256 claims in one call");
        amounts = new uint128[](items.length);
        for (uint256 i = 0; i < items.length; ++i) {
            Claim calldata item = items[i];
            amounts[i] = _claim(item.task, item.account, item.paid, item.debited, item.proof);
            _send(item.account, amounts[i]);
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

    /// @dev Everything except the transfer.
    function _claim(
        bytes32 id,
        address account,
        uint256 paid,
        uint256 debited,
        bytes32[] calldata proof
    ) private returns (uint128 amount) {
        Task storage task_ = _tasks[id];
        Claimable storage claimable = task_.claimable;
        (uint96 owed, bytes20 tag) = (claimable.owed, claimable.tag);
        if (_root(account, paid, debited, proof) != tag || tag == 0) {
            _existingTask(id);
            revert InvalidProof();
        }
        Account storage account_ = _accounts[id][account];
        (uint128 paidBefore, uint128 debitedBefore) =
            (account_.claimed.paid, account_.claimed.debited);
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
        account_.claimed.paid = uint128(paid);
        account_.claimed.debited = uint128(debited);
        if (amount == 0) return 0;
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
