"""OpenZeppelin's standard-v1 tree over (account, paid, debited), from its specification."""

from eth_abi import encode
from eth_utils import keccak

TYPES = ["address", "uint256", "uint256"]


def parent(pair):
    return keccak(b"".join(sorted(pair)))


def claim_leaf(account, paid, debited):
    return keccak(keccak(encode(TYPES, [account, paid, debited])))


def claim_root(leaves):
    """The root of a tree of at least one leaf."""
    heap = [b""] * (len(leaves) - 1) + sorted(leaves, reverse=True)
    for i in reversed(range(len(leaves) - 1)):
        heap[i] = parent(heap[2 * i + 1 : 2 * i + 3])
    return heap[0]
