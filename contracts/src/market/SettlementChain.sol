// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {LastSettlement, PostedSettlement} from "../interfaces/Types.sol";

/// @title Hash chain of settlements: one hash commits to all active settlements.
/// @notice A new storage slot for each settlement would cost 22,100 gas. Instead a task stores
/// hashes of its list: `head` after the last settlement, `finalHead` after the last final one. The
/// settlements themselves are in the events, and a caller that finalises or cancels passes them as
/// arguments.
///
/// A prepared list becomes stale when the coordinator posts again, so a coordinator could obstruct
/// the arbiter by posting. `checkpoint` prevents this: the arbiter records the current `head`, and
/// lists that end there remain valid after further posts.
/// @dev entry(n) = keccak256(innerHash(n), round, root, dataTotal, infrastructureTotal), each in 32
/// bytes; innerHash(n) = keccak256(entry(n-1), report, scorePayTotal, improvementTotalNano,
/// finalAt); entry(0) has only zeros. The settlement's previous root is part of entry(n-1).
library SettlementChain {
    /// @notice The initial hash of a task's history.
    function initialHash() internal pure returns (bytes32) {
        return entry(bytes32(0), 0, bytes32(0), 0, 0);
    }

    /// @notice The part of an entry that is not compared with the next settlement.
    function innerHash(
        bytes32 before,
        bytes32 report,
        uint128 scorePayTotal,
        uint64 improvementTotalNano,
        uint64 finalAt
    ) internal pure returns (bytes32) {
        return keccak256(
            abi.encode(before, report, scorePayTotal, improvementTotalNano, finalAt)
        );
    }

    /// @notice The hash of the history up to and including a settlement.
    function entry(
        bytes32 inner,
        uint32 round,
        bytes32 root,
        uint128 dataTotal,
        uint128 infrastructureTotal
    ) internal pure returns (bytes32) {
        return keccak256(abi.encode(inner, round, root, dataTotal, infrastructureTotal));
    }

    /// @notice The hash of a history that ends with `last`.
    function headOf(LastSettlement calldata last) internal pure returns (bytes32) {
        return
            entry(last.inner, last.round, last.root, last.dataTotal, last.infrastructureTotal);
    }

    /// @notice The hash of the history `before`, extended by `next`.
    function extend(bytes32 before, PostedSettlement calldata next)
        internal
        pure
        returns (bytes32)
    {
        return entry(
            innerHash(
                before,
                next.report,
                next.scorePayTotal,
                next.improvementTotalNano,
                next.finalAt
            ),
            next.round,
            next.root,
            next.dataTotal,
            next.infrastructureTotal
        );
    }
}
