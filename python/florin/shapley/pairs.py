"""Complementary pairs of coalitions, each drawn at most once, and the additive fit to them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from florin.shapley.game import Floats
from florin.shapley.streams import Stream

# The stream of the seed for drawing pairs.
STREAM = 0x70616972
# A pair that alone determines a direction of the fit has no residual; leverages this close to 1 count as such.
LEVERAGE_SLACK = 1e-9


class PairSampler:
    """Draws distinct pairs {S, Sᶜ} until none are left; the grand pair is not among them.

    First all pairs of one player and the rest, or the pairs along a permutation. Then the sizes alternate in rounds of
    one pair of each size, the middle size in every second round: the allocation of leverage scores (C. Musco and
    R. T. Witter, "Provably Accurate Shapley Value Estimation via Leverage Score Sampling", 2025), made exact round by
    round. An item is the mask of the smaller side, or of the half with player 0.
    """

    def __init__(self, players: int, seed: int, *, singles: bool) -> None:
        self.players, self._draw = players, Stream(seed, STREAM)
        self._full = (1 << players) - 1
        halves = [2 if 2 * size == players else 1 for size in range(players // 2 + 1)]
        self._sizes = [math.comb(players, size) // half for size, half in enumerate(halves)]
        self.drawn = [0] * len(self._sizes)
        self._seen: set[int] = set()
        self._left: dict[int, list[int]] = {}
        self._turns: list[int] = []
        self._round = 0 if singles else 2
        order = self._draw.permutation(players)
        if singles:
            self._initial = [self._smaller(1 << player) for player in order] if players > 1 else []
        else:
            prefixes, mask = [], 0
            for player in order[:-1]:
                mask |= 1 << player
                prefixes.append(self._smaller(mask))
            self._initial = prefixes[::-1]
        self.total = (1 << (players - 1)) - 1

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        while self._initial:
            side = self._initial.pop()
            if side not in self._seen:
                return self._mark(side)
        size = self._next_size()
        if size is None:
            raise StopIteration
        return self._mark(self._new(size))

    def inclusion(self, size: int) -> float:
        """The probability that a pair of this size is among those drawn."""
        return self.drawn[size] / self._sizes[size]

    def kernel_weight(self, size: int) -> float:
        """The weight of a drawn pair under the Shapley kernel, up to a common factor."""
        middle = 0.5 if 2 * size == self.players else 1.0
        return middle / (size * (self.players - size) * self.drawn[size])

    def _smaller(self, side: int) -> int:
        twice = 2 * side.bit_count()
        return side ^ self._full if twice > self.players or (twice == self.players and not side & 1) else side

    def _mark(self, side: int) -> int:
        self.drawn[side.bit_count()] += 1
        self._seen.add(side)
        return side

    def _open(self, size: int) -> bool:
        return self.drawn[size] < self._sizes[size]

    def _next_size(self) -> int | None:
        while True:
            while self._turns:
                size = self._turns.pop()
                if self._open(size):
                    return size
            turns = [size for size in range(1, len(self._sizes)) if self._open(size)]
            if not turns:
                return None
            if self._round % 2 == 1 and any(2 * size != self.players for size in turns):
                turns = [size for size in turns if 2 * size != self.players]
            self._round += 1
            self._draw.shuffle(turns)
            self._turns = turns

    def _new(self, size: int) -> int:
        # Rejection becomes slow once more than half are drawn: then the rest is listed.
        if size not in self._left and self.drawn[size] >= self._sizes[size] // 2:
            sides = (sum(1 << player for player in each) for each in combinations(range(self.players), size))
            self._left[size] = [s for s in sides if self._smaller(s) == s and s not in self._seen]
            self._draw.shuffle(self._left[size])
        if self._left.get(size):
            return self._left[size].pop()
        while True:
            side = self._smaller(self._draw.subset(self.players, size))
            if side not in self._seen:
                return side


def signs_of(sides: list[int], players: int) -> Floats:
    """+1 for each player on the side, −1 for the others: shape (sides, players)."""
    rows = [[1.0 if side >> player & 1 else -1.0 for player in range(players)] for side in sides]
    return np.array(rows, dtype=np.float64).reshape(len(sides), players)


class LinearFit(NamedTuple):
    values: Floats
    errors: Floats | None


def linear_fit(pairs: PairSampler, sides: list[int], total: float, halves: Floats) -> LinearFit | None:
    """The φ with Σ φ = total that minimise `Σ_k w_k·(2·d_k − Σ_i z_ki·φ_i)²`: LeverageSHAP (Musco and Witter, 2025).

    Exactly the Shapley value once all pairs are observed. Errors are those of a closed-form jackknife over the pairs.
    None if the pairs do not determine the fit.
    """
    n = pairs.players
    if not sides:
        return LinearFit(np.array([total]), np.zeros(1))
    weights = np.array([pairs.kernel_weight(side.bit_count()) for side in sides])
    weights *= len(sides) / weights.sum()
    z, even = signs_of(sides, n), total / n
    b = z.T @ (weights * (2.0 * halves - even * z.sum(axis=1)))
    a = z.T @ (weights[:, None] * z)
    # A on the differences between values, and a number of its magnitude on their common level.
    means = a.mean(axis=0)
    a = a + means.mean() - means[:, None] - means[None, :] + np.trace(a) / n / n
    lower = cholesky(a)
    if lower is None:
        return None
    inverse = np.linalg.solve(lower, np.eye(n))
    solved = inverse.T @ (inverse @ (b - b.mean()))
    values = even + solved - solved.mean()

    unseen = np.array([max(0.0, 1.0 - pairs.inclusion(side.bit_count())) for side in sides])
    centred = z - z.mean(axis=1, keepdims=True)
    moved = (centred @ inverse.T) @ inverse
    free = 1.0 - weights * (centred * moved).sum(axis=1)
    counted = unseen > 0.0
    complete = len(sides) == pairs.total
    if not complete and (len(sides) < n or not (free[counted] > LEVERAGE_SLACK).all()):
        return LinearFit(values, None)
    pull = (weights * (2.0 * halves - z @ values))[counted] / free[counted]
    variances = (unseen[counted, None] * (pull[:, None] * moved[counted]) ** 2).sum(axis=0)
    return LinearFit(values, np.sqrt(variances))


def cholesky(a: Floats) -> Floats | None:
    """The lower factor; None if the matrix is not positive definite."""
    try:
        lower = np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(lower, dtype=np.float64) if np.isfinite(lower).all() else None
