// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

/// @title Plain implementation of the claim tree: a heap whose last position holds the smallest
/// leaf.
library Tree {
    function leaf(address account, uint256 paid, uint256 debited) internal pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(account, paid, debited))));
    }

    /// @notice The nodes of the tree, root first.
    function nodes(bytes32[] memory leaves) internal pure returns (bytes32[] memory heap) {
        leaves = sorted(leaves);
        uint256 inner = leaves.length - 1;
        heap = new bytes32[](inner + leaves.length);
        for (uint256 i = 0; i < leaves.length; ++i) {
            heap[heap.length - 1 - i] = leaves[i];
        }
        for (uint256 i = inner; i > 0; --i) {
            heap[i - 1] = parent(heap[2 * i - 1], heap[2 * i]);
        }
    }

    function proof(bytes32[] memory heap, bytes32 wanted) internal pure returns (bytes32[] memory) {
        uint256 i = heap.length / 2;
        while (heap[i] != wanted) ++i;
        bytes32[] memory siblings = new bytes32[](64);
        uint256 length = 0;
        for (; i > 0; i = (i - 1) / 2) {
            siblings[length] = heap[i % 2 == 1 ? i + 1 : i - 1];
            length += 1;
        }
        return first(siblings, length);
    }

    /// @notice A root over one leaf and `depth` arbitrary siblings: the claim of one account in a
    /// tree of 2^depth accounts.
    function path(bytes32 own, uint256 depth)
        internal
        pure
        returns (bytes32 root, bytes32[] memory siblings)
    {
        siblings = new bytes32[](depth);
        root = own;
        for (uint256 i = 0; i < depth; ++i) {
            siblings[i] = keccak256(abi.encode("sibling", own, i));
            root = parent(root, siblings[i]);
        }
    }

    function parent(bytes32 a, bytes32 b) internal pure returns (bytes32) {
        return a < b ? keccak256(abi.encode(a, b)) : keccak256(abi.encode(b, a));
    }

    function sorted(bytes32[] memory values) internal pure returns (bytes32[] memory) {
        for (uint256 i = 1; i < values.length; ++i) {
            bytes32 value = values[i];
            uint256 j = i;
            for (; j > 0 && values[j - 1] > value; --j) {
                values[j] = values[j - 1];
            }
            values[j] = value;
        }
        return values;
    }

    function first(bytes32[] memory values, uint256 count)
        private
        pure
        returns (bytes32[] memory result)
    {
        result = new bytes32[](count);
        for (uint256 i = 0; i < count; ++i) {
            result[i] = values[i];
        }
    }
}
