// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {PostedSettlement, Standing} from "../interfaces/Types.sol";

/// @title The chain of settlements: one hash commits to all that stand.
/// @notice A new storage slot for each settlement would alone cost 22,100 gas. So a task keeps hashes of its list:
/// `head` after the last settlement, `base` after the last final one. What was posted is in the events, and whoever
/// finalises or cancels brings it along.
///
/// A list that somebody prepared becomes stale when the coordinator posts again, so a coordinator could disturb an
/// arbiter by posting. Hence `mark`: the arbiter writes down what `head` is, and lists that end there are good too,
/// whatever is posted meanwhile.
/// @dev entry(n) = keccak256(inner(n), round, root, dataTotal, infrastructureTotal), each in 32 bytes;
/// inner(n) = keccak256(entry(n-1), report, finalAt); before the first everything is zero. The settlement's previous
/// root lies in entry(n-1).
library History {
    /// @notice What a task's history begins with.
    function start() internal pure returns (bytes32) {
        return entry(bytes32(0), 0, bytes32(0), 0, 0);
    }

    /// @notice The part of an entry that a successor is not measured against.
    function inner(bytes32 before, bytes32 report, uint64 finalAt)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(before, report, finalAt));
    }

    /// @notice The history up to a settlement.
    function entry(
        bytes32 innerHash,
        uint32 round,
        bytes32 root,
        uint128 dataTotal,
        uint128 infrastructureTotal
    ) internal pure returns (bytes32) {
        return keccak256(abi.encode(innerHash, round, root, dataTotal, infrastructureTotal));
    }

    /// @notice The history up to the settlement that somebody says is the last.
    function upTo(Standing calldata last) internal pure returns (bytes32) {
        return
            entry(last.inner, last.round, last.root, last.dataTotal, last.infrastructureTotal);
    }

    /// @notice The history `before`, and then `next`.
    function then(bytes32 before, PostedSettlement calldata next) internal pure returns (bytes32) {
        return entry(
            inner(before, next.report, next.finalAt),
            next.round,
            next.root,
            next.dataTotal,
            next.infrastructureTotal
        );
    }
}
