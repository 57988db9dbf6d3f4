"""Random numbers of the valuation, as docs/protocol.md states them: ChaCha20 streams of a seed of 64 bits."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from florin.shapley.game import whole_number

Words = NDArray[np.uint32]
T = TypeVar("T")

SEED_MAX = (1 << 64) - 1
# Blocks of 16 words that are computed at once: doubled with each request, up to the largest number.
BLOCKS_FIRST, BLOCKS_MAX = 8, 2_048
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
ROUNDS = 10
# The quarter rounds of the columns and of the diagonals.
QUARTERS = [(i, i + 4, i + 8, i + 12) for i in range(4)] + [
    (i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12) for i in range(4)
]


def _key(seed: int) -> list[int]:
    """Eight words by PCG32 (XSH RR): `seed_from_u64` of the crate rand_core."""
    words = []
    for _ in range(8):
        seed = (seed * 6364136223846793005 + 11634580027462260723) & SEED_MAX
        mixed, turn = (((seed >> 18) ^ seed) >> 27) & 0xFFFFFFFF, seed >> 59
        words.append(((mixed >> turn) | (mixed << (-turn % 32))) & 0xFFFFFFFF)
    return words


class Stream:
    """One stream of a seed: D. J. Bernstein's ChaCha with 20 rounds, counter and stream of 64 bits each."""

    def __init__(self, seed: int, stream: int) -> None:
        seed = whole_number("seed", "seed", seed, 0, SEED_MAX)
        self._start = [*CONSTANTS, *_key(seed), 0, 0, stream & 0xFFFFFFFF, stream >> 32]
        self._counter, self._blocks = 0, BLOCKS_FIRST
        self._numbers: list[int] = []

    def number(self) -> int:
        """The next 64 bits, the lower word first."""
        if not self._numbers:
            self._numbers = self._fresh()
        return self._numbers.pop()

    def below(self, bound: int) -> int:
        """A uniform integer from 0 to bound − 1."""
        while True:
            number = self.number()
            if number < (1 << 64) // bound * bound:
                return number % bound

    def shuffle(self, items: list[T]) -> None:
        """R. A. Fisher and F. Yates, from the last position down."""
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]

    def permutation(self, n: int) -> list[int]:
        order = list(range(n))
        self.shuffle(order)
        return order

    def subset(self, n: int, size: int) -> int:
        """The mask of a uniform subset of 0 … n − 1 (R. Floyd)."""
        chosen = 0
        for last in range(n - size, n):
            candidate = self.below(last + 1)
            chosen |= 1 << (last if chosen >> candidate & 1 else candidate)
        return chosen

    def _fresh(self) -> list[int]:
        """The numbers of the next blocks, the first one last."""
        counters = np.arange(self._counter, self._counter + self._blocks, dtype=np.uint64)
        start = np.empty((16, self._blocks), dtype=np.uint32)
        start[:] = np.array(self._start, dtype=np.uint32)[:, None]
        start[12], start[13] = counters & np.uint64(0xFFFFFFFF), counters >> np.uint64(32)
        self._counter += self._blocks
        self._blocks = min(2 * self._blocks, BLOCKS_MAX)
        x = start.copy()
        for _ in range(ROUNDS):
            for a, b, c, d in QUARTERS:
                for left, right, other, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                    x[left] += x[right]
                    x[other] = _rotated(x[other] ^ x[left], by)
        words: Any = (x + start).T.reshape(-1, 2).astype(np.uint64)
        numbers: list[int] = (words[:, 0] | words[:, 1] << np.uint64(32)).tolist()
        return numbers[::-1]


def _rotated(words: Words, by: int) -> Words:
    return words << np.uint32(by) | words >> np.uint32(32 - by)
