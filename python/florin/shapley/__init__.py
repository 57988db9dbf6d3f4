"""Shapley values of any game: estimators over a callable `value(coalition)`.

    import florin
    fares = {"Ada": 6.0, "Bo": 12.0, "Cy": 42.0}
    taxi = lambda coalition: max((fares[player] for player in coalition), default=0.0)
    florin.shapley.exact(taxi, list(fares)).values        # array([ 2.,  5., 35.])

`players` is a number n, for the players 0 … n − 1, or a list of names. `value` receives a frozenset of players and
returns its value: a finite number, or one for each row that the game is measured on (an array), whose mean counts.
The value of the empty coalition may be any number: an estimator divides v(N) − v(∅).

| function | source | fewest evaluations | properties |
|---|---|---|---|
| `exact` | Shapley 1953 | 2ⁿ, n ≤ 24 | the definition |
| `path` | Aumann and Shapley 1974 | 3 gradients, any n | needs gradients; efficient up to quadrature error |
| `odd` | kernel ridge regression of odd interactions, else LeverageSHAP | 2n | efficient; exact on games of pairs |
| `antithetic_permutation` | Mitchell and others 2022 | 2n | unbiased, efficient; exact on games of pairs |
| `permutation` | Castro, Gómez and Tejada 2009 | n + 1 | unbiased, efficient |
| `truncated_monte_carlo` | Ghorbani and Zou 2019 | n + 1 | biased by its truncation, which the gap shows |
| `leave_one_out` | – | n + 2 | not efficient |

Names, random streams and stopping rules are those of the crate florin-contribution: the same game, seed and budget
evaluate the same coalitions there and here, and the values agree up to the rounding of floats. A market pays by
`path`, and publishes a cross-check by `odd`, which this module recomputes from a report.
"""

from florin.errors import ValuationError
from florin.shapley.exact import exact, leave_one_out
from florin.shapley.game import Game, Node, Valuation
from florin.shapley.odd import odd
from florin.shapley.path import path
from florin.shapley.sampling import antithetic_permutation, permutation, truncated_monte_carlo

__all__ = [
    "Game",
    "Node",
    "Valuation",
    "ValuationError",
    "antithetic_permutation",
    "exact",
    "leave_one_out",
    "odd",
    "path",
    "permutation",
    "truncated_monte_carlo",
]
