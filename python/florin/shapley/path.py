"""The Aumann–Shapley value: each player's marginal contribution along the diagonal of the unit cube."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from florin.errors import ValuationError
from florin.shapley.game import Floats, Node, Valuation, error_of_rows, names_of, tolerance_of, whole_number

# Largest number of nodes, except 12.
NODES_MAX = 8


def gauss_legendre(nodes: int) -> tuple[Floats, Floats]:
    """Nodes, ascending, and weights of the quadrature on 0 to 1: exact for polynomials of degree 2·nodes − 1."""
    if nodes not in (*range(1, NODES_MAX + 1), 12) or isinstance(nodes, bool):
        raise ValuationError("NODES_OUT_OF_RANGE", f"{nodes!r} quadrature nodes; choose from 1 to {NODES_MAX}, or 12")
    x, weight = np.polynomial.legendre.leggauss(nodes)
    return (1.0 + x) / 2.0, weight / 2.0


def path(
    gradient: Callable[[float], Any],
    players: int | Sequence[Hashable],
    *,
    diagonal: Callable[[float], Any] | None = None,
    nodes: int = 3,
    tolerance: float | None = None,
) -> Valuation:
    """`φ_i = ∫₀¹ ∂v/∂x_i (t, …, t) dt` by Gauss–Legendre quadrature with 1 to 8 or 12 nodes.

    R. J. Aumann and L. S. Shapley, "Values of Non-Atomic Games", 1974. The cost is a gradient for each node, for any
    number of players. The values agree with Shapley values through second order, and splitting a player in two
    changes nothing.

    `gradient(t)` returns the derivative of the value for each player when all participate with t: an array of shape
    (n,), or (n, rows) if the game is measured on rows; two rows or more give standard errors. `diagonal(t)` returns
    the value there, a number or one for each row; it is evaluated at 0 and 1, for `total` and `gap`. With `tolerance`,
    which needs `diagonal`, nodes are added up to 8 until the gap is at most tolerance · |total|.
    """
    names = names_of(players)
    gauss_legendre(nodes)
    if tolerance_of(tolerance) is not None and diagonal is None:
        raise ValuationError("SETTING_OUT_OF_RANGE", "`path`: tolerance needs diagonal, the value at 0 and at 1")
    total = None if diagonal is None else _worth(diagonal, 1.0) - _worth(diagonal, 0.0)
    count = whole_number("path", "nodes", nodes, 1, 12)
    gradients = 0
    while True:
        by_row, of_nodes = _integrate(gradient, len(names), count)
        gradients += count
        values = np.asarray(by_row.mean(axis=1))
        gap = None if total is None else total - math.fsum(values)
        wide = total is not None and gap is not None and tolerance is not None and abs(gap) > tolerance * abs(total)
        if not wide or count >= NODES_MAX:
            break
        count += 1
    return Valuation(
        players=names,
        values=values,
        standard_errors=error_of_rows(by_row),
        estimator_errors=None,
        total=total,
        gap=gap,
        evaluations=0 if diagonal is None else 2,
        gradients=gradients,
        nodes=of_nodes,
        remark=f"{count} nodes",
    )


def _integrate(gradient: Callable[[float], Any], n: int, count: int) -> tuple[Floats, tuple[Node, ...]]:
    """The integral of each player on each row, (n, rows), and the mean derivatives at each node."""
    integral: Floats | None = None
    of_nodes = []
    for t, weight in zip(*gauss_legendre(count)):
        slopes = _called("the derivatives", gradient, float(t))
        slopes = slopes.reshape(n, 1) if slopes.shape == (n,) else slopes
        if slopes.ndim != 2 or slopes.shape[0] != n or slopes.shape[1] == 0:
            message = f"the derivatives at t = {t} have the shape {slopes.shape}; give ({n},) or ({n}, rows)"
            raise ValuationError("SHAPE_MISMATCH", message)
        if integral is not None and integral.shape != slopes.shape:
            message = f"the game returned {slopes.shape[1]} rows, where {integral.shape[1]} were expected"
            raise ValuationError("SHAPE_MISMATCH", message)
        if not np.isfinite(slopes).all():
            player, row = (int(at) for at in np.argwhere(~np.isfinite(slopes))[0])
            message = f"the derivative of player {player} at t = {t} is {slopes[player, row]} in row {row}"
            raise ValuationError("DERIVATIVE_NOT_FINITE", f"{message}; it must be finite")
        integral = weight * slopes if integral is None else integral + weight * slopes
        of_nodes.append(Node(float(t), float(weight), slopes.mean(axis=1)))
    assert integral is not None, "there is at least one node"
    return integral, tuple(of_nodes)


def _worth(diagonal: Callable[[float], Any], t: float) -> float:
    worth = float(np.atleast_1d(_called("the value", diagonal, t)).mean())
    if not math.isfinite(worth):
        message = f"the value on the diagonal at t = {t} is {worth}; it must be finite"
        raise ValuationError("DIAGONAL_NOT_FINITE", message)
    return worth


def _called(what: str, function: Callable[[float], Any], t: float) -> Floats:
    try:
        return np.asarray(function(t), dtype=np.float64)
    except Exception as cause:
        message = f"{what} at t = {t} could not be evaluated"
        raise ValuationError("GAME_FAILED", message, [f"{type(cause).__name__}: {cause}"]) from cause
