"""Estimators that average marginal contributions over random permutations."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from florin.errors import ValuationError
from florin.shapley.game import PASSES_MAX, TABLE_PLAYERS_MAX, Floats, Game, Valuation, Value, shapley_of_table
from florin.shapley.streams import Stream

# Number of coalitions at which a batch is full.
BATCH, BATCH_TRUNCATED = 128, 512
# Evaluations per player of a run without limits: about a hundred permutations.
PASSES_PER_PLAYER = 100
# Fewest samples for an error that is compared with a tolerance.
SAMPLES_MIN = 5
# Consecutive samples without a new coalition after which the reachable coalitions count as exhausted.
IDLE_SAMPLES_MAX = 1_000


def permutation(
    value: Value,
    players: int | Sequence[Hashable],
    *,
    seed: int = 0,
    budget: int | None = None,
    tolerance: float | None = None,
) -> Valuation:
    """Permutation sampling, or ApproShapley: marginal contributions, averaged over random permutations.

    J. Castro, D. Gómez and J. Tejada, "Polynomial calculation of the Shapley value based on sampling", 2009. Unbiased,
    and efficient for any budget. A permutation costs at most n − 1 evaluations. Stops at `budget` evaluations, at an
    estimated relative error of `tolerance`, or else after 100·n + 2 evaluations; exact once all coalitions are known.
    """
    return _Sampler("permutation", 0x7065726D, "permutations").run(value, players, seed, budget, tolerance)


def antithetic_permutation(
    value: Value,
    players: int | Sequence[Hashable],
    *,
    seed: int = 0,
    budget: int | None = None,
    tolerance: float | None = None,
) -> Valuation:
    """Permutation sampling by antithetic pairs: every random order together with its reverse.

    R. Mitchell, J. Cooper, E. Frank and G. Holmes, "Sampling Permutations for Shapley Value Estimation", 2022. All
    interactions of two players cancel within a pair, so on a game of pairs the first pair is exact. Unbiased and
    efficient. The errors are over pairs. Limits as for `permutation`.
    """
    kind = _Sampler("antithetic-permutation", 0x616E7469, "pairs of permutations", antithetic=True)
    return kind.run(value, players, seed, budget, tolerance)


def truncated_monte_carlo(
    value: Value,
    players: int | Sequence[Hashable],
    *,
    seed: int = 0,
    budget: int | None = None,
    tolerance: float | None = None,
    truncation: float = 0.01,
) -> Valuation:
    """Permutation sampling that leaves a permutation once its value is within truncation · |v(N) − v(∅)| of v(N).

    A. Ghorbani and J. Zou, "Data Shapley: Equitable Valuation of Data for Machine Learning", 2019. The remaining
    players get nothing, so the values are biased; the gap shows by how much, the errors do not. `truncation` is from 0
    (never) to 1. Limits as for `permutation`.
    """
    if not (isinstance(truncation, (int, float)) and 0.0 <= truncation <= 1.0):
        message = f"`truncated-monte-carlo`: truncation is {truncation!r}; it must be from 0 to 1"
        raise ValuationError("SETTING_OUT_OF_RANGE", message)
    kind = _Sampler("truncated-monte-carlo", 0x746D6320, "truncated permutations", truncation=float(truncation))
    return kind.run(value, players, seed, budget, tolerance)


@dataclass
class _Moments:
    """Count, mean and sum of squares of vectors (B. P. Welford, 1962): equal numbers have exactly no variance."""

    count: int = 0
    mean: Floats = field(default_factory=lambda: np.zeros(1))
    squares: Floats = field(default_factory=lambda: np.zeros(1))

    def add(self, sample: Floats) -> None:
        self.count += 1
        off = sample - self.mean
        self.mean = self.mean + off / self.count
        self.squares = self.squares + off * (sample - self.mean)

    def errors(self) -> Floats | None:
        if self.count < 2:
            return None
        return np.asarray(np.sqrt(self.squares / (self.count - 1) / self.count))


@dataclass
class _Sampler:
    """A scheme whose samples are independent, each an unbiased estimate of the values of all players."""

    name: str
    stream: int
    unit: str
    antithetic: bool = False
    truncation: float | None = None

    def run(
        self,
        value: Value,
        players: int | Sequence[Hashable],
        seed: int,
        budget: int | None,
        tolerance: float | None,
    ) -> Valuation:
        game = Game(value, players)
        draw = Stream(seed, self.stream)
        least = min(2 * game.n if self.antithetic else game.n + 1, game.all)
        default = min(max(PASSES_PER_PLAYER * game.n + 2, least), game.all)
        game.limit(self.name, least, min(default, PASSES_MAX), budget, tolerance)
        empty, grand = game.values([0, game.full])
        tally, pending, cut_short, idle_from = _Moments(), None, False, (0, 0)
        while True:
            stop, idle_from = self._stop(game, tally, cut_short, idle_from)
            if stop is not None:
                break
            batch, pending = self._batch(game, draw, pending)
            cut_short = not batch
            for order in batch:
                tally.add(self._sample(game, order, empty, grand))
        remark = f"{tally.count} {self.unit}; {stop}"
        total = float(grand - empty)
        if stop.startswith("all coalitions"):
            table = game.values(range(game.all)).reshape(-1, 1)
            return game.valuation(shapley_of_table(table, game.n)[:, 0], total, np.zeros(game.n), remark)
        return game.valuation(tally.mean, total, tally.errors(), remark)

    def _stop(
        self, game: Game, tally: _Moments, cut_short: bool, idle_from: tuple[int, int]
    ) -> tuple[str | None, tuple[int, int]]:
        """The reason to stop now, and evaluations and samples at the last new coalition."""
        if game.n <= TABLE_PLAYERS_MAX:
            unknown = game.all - game.evaluations
            if unknown == 0 or (self.truncation is None and unknown <= min(BATCH, game.left)):
                return "all coalitions are known, so the values are exact", idle_from
        if tally.count == 0:
            return None, idle_from
        if tally.count >= SAMPLES_MIN and game.has_converged(tally.mean, tally.errors()):
            return "the error is within the tolerance", idle_from
        if cut_short:
            return "the remaining budget is too small for another sample", idle_from
        if game.evaluations > idle_from[0]:
            idle_from = (game.evaluations, tally.count)
        if tally.count - idle_from[1] >= IDLE_SAMPLES_MAX:
            return f"the last {IDLE_SAMPLES_MAX} samples contained no new coalition", idle_from
        return None, idle_from

    def _batch(
        self, game: Game, draw: Stream, pending: list[int] | None
    ) -> tuple[list[list[int]], list[int] | None]:
        """The permutations of a batch, as many as fit the budget; one that does not fit is the next batch's first.

        Whether one fits depends on which coalitions were drawn before, never on their values: no bias.
        """
        batch: list[list[int]] = []
        new: set[int] = set()
        size, full = 0, BATCH if self.truncation is None else BATCH_TRUNCATED
        while size < full:
            order = draw.permutation(game.n) if pending is None else pending
            masks = _prefixes(order) + (_prefixes(order[::-1]) if self.antithetic else [])
            more = {mask for mask in masks if not game.knows(mask) and mask not in new}
            if len(new) + len(more) > game.left:
                return batch, order
            pending = None
            new |= more
            size += len(masks)
            batch.append(order)
        return batch, None

    def _sample(self, game: Game, order: list[int], empty: float, grand: float) -> Floats:
        if not self.antithetic:
            return self._walk(game, order, empty, grand)
        return 0.5 * (self._walk(game, order, empty, grand) + self._walk(game, order[::-1], empty, grand))

    def _walk(self, game: Game, order: list[int], empty: float, grand: float) -> Floats:
        """The marginal contributions along an order, by player."""
        near = -1.0 if self.truncation is None else self.truncation * abs(grand - empty)
        values, before, mask = np.zeros(game.n), empty, 0
        for at, player in enumerate(order):
            if math.fabs(grand - before) < near:
                break
            mask |= 1 << player
            after = grand if at + 1 == game.n else game.value(mask)
            values[player], before = after - before, after
        return values


def _prefixes(order: list[int]) -> list[int]:
    """The coalitions along an order, between the empty and the grand coalition."""
    masks, mask = [], 0
    for player in order[:-1]:
        mask |= 1 << player
        masks.append(mask)
    return masks
