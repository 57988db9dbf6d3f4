"""Values by their definitions: every coalition, or every coalition of all players but one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from florin.shapley.game import TABLE_PLAYERS_MAX, Game, Valuation, Value, error_of_rows, shapley_of_table, too_many

# Largest number of floats in the table of values; beyond it the table has only the means of the rows.
TABLE_MAX = 1 << TABLE_PLAYERS_MAX


def exact(value: Value, players: int | Sequence[Hashable]) -> Valuation:
    """The Shapley value by enumeration of all 2ⁿ coalitions, for at most 24 players.

    L. S. Shapley, "A value for n-person games", 1953: `φ_i = 1/n Σ_s mean_{|S|=s, S∌i} (v(S∪i) − v(S))`. If `value`
    returns rows, and coalitions × rows fit 2²⁴ numbers, the result has standard errors over the rows.
    """
    game = Game(value, players)
    if game.n > TABLE_PLAYERS_MAX:
        raise too_many("exact", game.n, TABLE_PLAYERS_MAX)
    first = game.rows(0)
    width = first.size if first.size <= TABLE_MAX // game.all else 1
    table = np.empty((game.all, width))
    table[0] = first if width == first.size else first.mean()
    for mask in range(1, game.all):
        rows = game.rows(mask)
        table[mask] = rows if width == rows.size else rows.mean()
    by_row = shapley_of_table(table, game.n)
    total = game.value(game.full) - game.value(0)
    return game.valuation(
        by_row.mean(axis=1), total, np.zeros(game.n), f"all {game.all} coalitions", error_of_rows(by_row)
    )


def leave_one_out(value: Value, players: int | Sequence[Hashable]) -> Valuation:
    """`v(N) − v(N∖i)` of each player: n + 2 evaluations. Blind to players that replace each other."""
    game = Game(value, players)
    without = game.values(game.full ^ (1 << player) for player in range(game.n))
    grand, empty = game.value(game.full), game.value(0)
    return game.valuation(grand - without, grand - empty, np.zeros(game.n), f"{game.n} players left out in turn")
