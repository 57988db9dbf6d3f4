"""A game as the estimators see it: evaluations are counted, cached and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florin.errors import ValuationError

Floats = NDArray[np.float64]
Value = Callable[[frozenset[Any]], Any]

# Largest number of evaluations of a run without a budget.
PASSES_MAX = 1 << 26
# Largest number of players: permutations of more take minutes.
PLAYERS_MAX = 10_000
# Largest number of players whose coalitions fit a table: 2^24 values are 128 MiB.
TABLE_PLAYERS_MAX = 24


@dataclass(frozen=True)
class Node:
    """A gradient of a path: `values = Σ weight · derivatives` over the nodes."""

    t: float
    """Position on the path, from 0 to 1."""
    weight: float
    """Weight in the quadrature; the weights sum to 1."""
    derivatives: Floats
    """The derivative of the value for each player, the mean over the rows: shape (n,)."""


@dataclass(frozen=True)
class Valuation:
    """The contributions of n players. All arrays have the shape (n,) and the unit of the game."""

    players: tuple[Hashable, ...]
    values: Floats
    standard_errors: Floats | None
    """One standard error of each value over the rows of the game; None without at least two rows."""
    estimator_errors: Floats | None
    """One standard error of each value over the sampling of coalitions; zeros without sampling, None if unknown."""
    total: float | None
    """v(N) − v(∅); None if it was not evaluated."""
    gap: float | None
    """The part of the total that the values do not explain."""
    evaluations: int
    """Number of distinct coalitions evaluated."""
    gradients: int = 0
    nodes: tuple[Node, ...] = ()
    remark: str | None = None
    """The reason for stopping, or the chosen model, for people."""

    def by_player(self) -> dict[Hashable, float]:
        """The values by player."""
        return {player: float(value) for player, value in zip(self.players, self.values)}


def names_of(players: int | Sequence[Hashable]) -> tuple[Hashable, ...]:
    """The players' names: 0 … n − 1, or those given."""
    if isinstance(players, (int, np.integer)) and not isinstance(players, bool):
        count = int(players)
    elif isinstance(players, Iterable) and not isinstance(players, (str, bytes)):
        names = tuple(players)
        count = len(names)
    else:
        raise ValuationError("PLAYERS_INVALID", f"players is {players!r}; give their number, or a list of names")
    if count < 1:
        raise ValuationError("NO_PLAYERS", f"the game has {count} players; a valuation needs at least 1")
    if count > PLAYERS_MAX:
        raise too_many("this package", count, PLAYERS_MAX)
    if isinstance(players, (int, np.integer)):
        return tuple(range(count))
    seen: dict[Hashable, int] = {}
    for at, name in enumerate(names):
        if seen.setdefault(name, at) != at:
            message = f"players {seen[name]} and {at} have the same name {name!r}; every name must be unique"
            raise ValuationError("DUPLICATE_ID", message)
    return names


def too_many(estimator: str, players: int, limit: int) -> ValuationError:
    message = f"{players} players are too many for `{estimator}`, which takes at most {limit}"
    return ValuationError("TOO_MANY_PLAYERS", message)


def whole_number(estimator: str, key: str, value: Any, low: int, high: int) -> int:
    """A setting that is a whole number within bounds."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and low <= value <= high:
        return int(value)
    bounds = f"a whole number from {low} to {high}"
    raise ValuationError("SETTING_OUT_OF_RANGE", f"`{estimator}`: {key} is {value!r}; it must be {bounds}")


def tolerance_of(value: float | None) -> float | None:
    """A relative error at which an estimator may stop."""
    if value is None or (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        return value
    raise ValuationError("TOLERANCE_OUT_OF_RANGE", f"a tolerance of {value!r}; it must be a positive finite number")


class Game:
    """The callable of a game with a budget: each coalition, a mask with bit i for player i, is evaluated once."""

    def __init__(self, value: Value, players: int | Sequence[Hashable]) -> None:
        if not callable(value):
            raise ValuationError("GAME_FAILED", f"value is {value!r}; give a function of a coalition")
        self.names = names_of(players)
        self.n = len(self.names)
        self.full = (1 << self.n) - 1
        self.all = 1 << self.n
        self.budget = PASSES_MAX
        self.tolerance: float | None = None
        self._value = value
        self._known: dict[int, float] = {}
        self._rows: int | None = None

    def limit(self, estimator: str, least: int, default: int, budget: int | None, tolerance: float | None) -> None:
        """Sets the limits of a run; without any, `default` evaluations."""
        self.tolerance = tolerance_of(tolerance)
        if budget is not None:
            budget = whole_number(estimator, "budget", budget, 0, PASSES_MAX)
            if budget < least:
                message = f"a budget of {budget} passes is too small for `{estimator}`, which needs {least}"
                raise ValuationError("BUDGET_TOO_SMALL", message)
        elif tolerance is None:
            budget = default
        self.budget = max(least, min(PASSES_MAX if budget is None else budget, PASSES_MAX))

    @property
    def evaluations(self) -> int:
        return len(self._known)

    @property
    def left(self) -> int:
        """Evaluations left in the budget."""
        return max(0, self.budget - self.evaluations)

    def knows(self, mask: int) -> bool:
        return mask in self._known

    def coalition(self, mask: int) -> frozenset[Hashable]:
        return frozenset(name for at, name in enumerate(self.names) if mask >> at & 1)

    def rows(self, mask: int) -> Floats:
        """The value of a coalition on each row, not from the cache."""
        coalition = self.coalition(mask)
        try:
            answer = self._value(coalition)
            if answer is None:
                raise TypeError("the function returned None, where a number was expected")
            rows = np.atleast_1d(np.asarray(answer, dtype=np.float64))
        except Exception as cause:
            message = f"the value of {self.shown(mask)} could not be evaluated"
            raise ValuationError("GAME_FAILED", message, [f"{type(cause).__name__}: {cause}"]) from cause
        if rows.ndim != 1 or rows.size == 0:
            message = f"the value of {self.shown(mask)} has the shape {rows.shape}; give a number, or one for each row"
            raise ValuationError("SHAPE_MISMATCH", message)
        if self._rows not in (None, rows.size):
            message = f"the game returned {rows.size} rows, where {self._rows} were expected"
            raise ValuationError("SHAPE_MISMATCH", message)
        self._rows = rows.size
        if not np.isfinite(rows).all():
            row = int(np.flatnonzero(~np.isfinite(rows))[0])
            message = f"{self.shown(mask)} has the value {rows[row]} in row {row}; values must be finite"
            raise ValuationError("VALUE_NOT_FINITE", message)
        self._known[mask] = float(rows.mean())
        return rows

    def value(self, mask: int) -> float:
        if mask not in self._known:
            self.rows(mask)
        return self._known[mask]

    def values(self, masks: Iterable[int]) -> Floats:
        """The values of coalitions, in their order."""
        return np.array([self.value(mask) for mask in masks], dtype=np.float64)

    def shown(self, mask: int) -> str:
        """A coalition for a message."""
        names = [repr(name) for at, name in enumerate(self.names) if mask >> at & 1]
        more = ["…"] if len(names) > 12 else []
        return "coalition {" + ", ".join(names[:12] + more) + "}"

    def has_converged(self, values: Floats, errors: Floats | None) -> bool:
        if self.tolerance is None or errors is None:
            return False
        return float(np.linalg.norm(errors)) <= self.tolerance * float(np.linalg.norm(values))

    def valuation(
        self, values: Floats, total: float, errors: Floats | None, remark: str, rows: Floats | None = None
    ) -> Valuation:
        return Valuation(
            players=self.names,
            values=values,
            standard_errors=rows,
            estimator_errors=errors,
            total=total,
            gap=total - math.fsum(values),
            evaluations=self.evaluations,
            remark=remark,
        )


def shapley_of_table(table: Floats, n: int) -> Floats:
    """The Shapley values of a game by its table, indexed by mask: shape (2ⁿ, rows) to (n, rows)."""
    rows = table.shape[1]
    sizes = np.zeros(1, dtype=np.int64)
    for _ in range(n):
        sizes = np.concatenate([sizes, sizes + 1])
    weights = np.array([1.0 / (n * math.comb(n - 1, size)) for size in range(n)])
    values = np.empty((n, rows))
    for player in range(n):
        shape = (1 << (n - 1 - player), 2, 1 << player)
        pairs = table.reshape(*shape, rows)
        marginals = (pairs[:, 1] - pairs[:, 0]).reshape(-1, rows)
        without = sizes.reshape(shape)[:, 0].reshape(-1)
        values[player] = weights[without] @ marginals
    return values


def error_of_rows(rows: Floats) -> Floats | None:
    """One standard error of each mean over the last axis; None with fewer than two rows."""
    count = rows.shape[-1]
    return None if count < 2 else np.asarray(rows.std(axis=-1, ddof=1) / math.sqrt(count))
