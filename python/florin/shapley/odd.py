"""Odd regression: Shapley values from half the differences between coalitions and their complements.

The functions are those of docs/protocol.md, section "Paired regression", and of contribution/src/odd_regression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from florin.errors import ValuationError
from florin.shapley.game import PASSES_MAX, Floats, Game, Valuation, Value
from florin.shapley.kernels import Gram, Kernel, Products, Uniform, gram_of
from florin.shapley.pairs import PairSampler, cholesky, linear_fit, signs_of

# Evaluations per player of a run without limits: about 1 % error on games of 20 players with strong overlap.
PASSES_PER_PLAYER = 40
# Between two checks of the limits the number of pairs grows by one part in GROWTH, at least by STEP_MIN.
STEP_MIN, GROWTH = 4, 4
# Largest number of pairs of the fit with interactions; additional pairs enter by a linear fit.
PAIRS_FITTED_MAX = 1_024
# Largest number of players for a fit with interactions, and for one with scales of partners.
PLAYERS_MAX, PARTNERS_MAX = 256, 64
# A fit whose residual exceeds this share of that of the linear fit gets a linear correction, with enough pairs.
RESIDUAL_SHARE_MAX, CORRECTION_PAIRS_PER_PLAYER = 0.5, 10
# Number of groups of pairs in the jackknife.
GROUPS = 10
# Pairs for the selection of a model, and the fewest beyond one per player.
SELECTION_PAIRS_MAX, SPARE_PAIRS_MIN = 256, 4
# Prior variance that stands for "unpenalised"; share of the noise of the grand pair; limit of a predictive variance.
UNPENALISED, GRAND_SHARE, UNCERTAIN_MAX = 1e6, 1e-3, 1e3
# Noise levels and shapes (γ, τ) that are tried: the scale of a player is τ times its relative strength to the power γ.
UNIFORM_NOISES, NOISE, NOISES_BEST, PAIRWISE_NOISES = (1e-9, 1e-4, 1e-2, 1.0), 1e-3, (1e-6, 1e-1), (1e-4, 1e-2)
PARTNER_SHAPES = ((1.0, 0.1), (1.0, 0.3), (2.0, 0.3), (2.0, 0.9))
VALUE_SHAPES = ((0.5, 0.1), (1.0, 0.1), (1.0, 0.3), (2.0, 0.3))
SECOND_SHAPES = ((1.0, 0.1), (1.0, 0.3))
# Lower bound of a scale as a share of τ, and of a magnitude.
SCALE_MIN, TINY = 1e-4, 2.2250738585072014e-308


def odd(
    value: Value,
    players: int | Sequence[Hashable],
    *,
    seed: int = 0,
    budget: int | None = None,
    tolerance: float | None = None,
) -> Valuation:
    """Odd (paired) regression: for smooth games without gradients, the fewest evaluations of all estimators here.

    The Shapley value depends only on `d(S) = (v(S) − v(Sᶜ))/2`, and this only on interactions of odd numbers of players
    (PolySHAP, 2026). The estimator fits d to distinct pairs by kernel ridge regression, with an unpenalised linear part
    and one of three priors of the interactions, chosen by cross-validation. If none predicts better than the additive
    model, it is LeverageSHAP (C. Musco and R. T. Witter, 2025) on the same pairs.

    2n evaluations are exact for games with interactions of up to two players, all 2ⁿ for every game. Errors come from
    leaving out a tenth of the pairs at a time. Stops at `budget` evaluations, at an estimated relative error of
    `tolerance`, or else after 40·n.
    """
    game = Game(value, players)
    least, default = 2 * game.n, min(PASSES_PER_PLAYER * game.n, game.all)
    game.limit("odd", least, min(default, PASSES_MAX), budget, tolerance)
    seen = _Observations(game, seed)
    wanted = game.n - 1
    while True:
        came = seen.sample(wanted)
        over = came < wanted or seen.is_complete or game.left < 2
        wanted = min(game.left // 2, max(STEP_MIN, seen.count // GROWTH))
        if not over and tolerance is None:
            continue
        answer = seen.estimate()
        if over or game.has_converged(answer.values, answer.estimator_errors):
            return answer


class _Observations:
    """The pairs of a game so far, the grand pair first."""

    def __init__(self, game: Game, seed: int) -> None:
        self.game, n = game, game.n
        # Single players first are the better start, but only if the budget covers all of them.
        self.pairs = PairSampler(n, seed, singles=game.left >= 2 * n + 2)
        self.sides: list[int] = []
        self.odd: list[float] = []
        self.even: list[float] = []
        self._observe([game.full])
        self.total = 2.0 * self.odd[0]

    @property
    def count(self) -> int:
        return len(self.sides) - 1

    @property
    def is_complete(self) -> bool:
        return self.count == self.pairs.total

    def sample(self, wanted: int) -> int:
        fresh = list(islice(self.pairs, wanted))
        self._observe(fresh)
        return len(fresh)

    def _observe(self, sides: list[int]) -> None:
        for side in sides:
            ours, others = self.game.value(side), self.game.value(side ^ self.game.full)
            self.sides.append(side)
            self.odd.append(0.5 * (ours - others))
            self.even.append(0.5 * (ours + others))

    def estimate(self) -> Valuation:
        if self.is_complete:
            return self._linear(f"all {self.count} pairs: the values are exact")
        fitted = self._with_interactions() if self.game.n <= PLAYERS_MAX else None
        if fitted is not None:
            return fitted
        along = self.count < self.game.n
        return self._linear(
            f"{self.count} pairs along a permutation" if along
            else f"{self.count} pairs; the additive model predicts them best"
        )

    def _linear(self, remark: str) -> Valuation:
        fit = linear_fit(self.pairs, self.sides[1:], self.total, np.array(self.odd[1:]))
        if fit is None:
            message = f"`odd`: the equations of {self.count} coalitions are singular; raise the budget"
            raise ValuationError("EQUATIONS_SINGULAR", message)
        return self.game.valuation(fit.values, self.total, fit.errors, remark)

    def _with_interactions(self) -> Valuation | None:
        """The fit with interactions; None if no such model is better than the linear fit."""
        z, odd_part = signs_of(self.sides, self.game.n), np.array(self.odd)
        model = _select_model(z, odd_part, np.array(self.even))
        count = min(len(self.sides), PAIRS_FITTED_MAX + 1)
        made = None if model is None else gram_of(model.kernel, True, z[:count])
        fit = None if made is None or model is None else _OddFit.of(made, model.noise, z[:count], odd_part[:count])
        if model is None or made is None or fit is None:
            return None
        read_out = model.kernel.values(z[:count]) * made.scale
        values = _with_sum(fit.values(read_out), self.total)
        remark = f"{self.count} pairs; {model.name}"
        jumps = model.rmse > RESIDUAL_SHARE_MAX * model.linear_rmse
        rich = self.count >= CORRECTION_PAIRS_PER_PLAYER * self.game.n
        if count == len(self.sides) and not (jumps and rich):
            return self.game.valuation(values, self.total, _jackknife(fit, read_out), remark)
        # The residual of each pair, predicted from the others, is fitted linearly: that converges to the exact values.
        own = fit.diagonal()
        if not (own > 0.0).all():
            return None
        missed = (fit.alpha / own)[1:]
        if count < len(self.sides):
            rest = z[count:]
            kernel = model.kernel.between(True, rest, z[:count]) * made.scale
            missed = np.concatenate([missed, odd_part[count:] - rest @ fit.beta - kernel @ fit.alpha])
        more = linear_fit(self.pairs, self.sides[1:], 0.0, missed)
        if more is None:
            return None
        remark += ", corrected by a linear fit"
        return self.game.valuation(values + more.values, self.total, more.errors, remark)


# --- systems of equations ---


def _with_noise(matrix: Floats, noise: float) -> Floats:
    extra = np.full(len(matrix), noise)
    extra[0] *= GRAND_SHARE
    return np.asarray(matrix + np.diag(extra))


def _inverse_lower(matrix: Floats) -> Floats | None:
    lower = cholesky(matrix)
    return None if lower is None else np.tril(np.linalg.solve(lower, np.eye(len(lower))))


# --- the choice of a model ---


@dataclass
class _Model:
    name: str
    kernel: Kernel
    noise: float
    rmse: float
    linear_rmse: float = math.inf


@dataclass
class _Trial:
    noise: float
    rmse: float
    alpha: Floats


class _Comparison:
    """The part of a sample that models are compared on."""

    def __init__(self, odd: bool, z: Floats, data: Floats) -> None:
        self.odd, self.n = odd, z.shape[1]
        count = min(len(z), max(SELECTION_PAIRS_MAX, 2 * self.n))
        self.z, self.data = z[:count], data[:count]
        self.free = UNPENALISED * (self.z @ self.z.T / self.n if odd else np.ones((count, count)))

    def leave_one_out(self, gram: Gram | None, noise: float) -> _Trial | None:
        """The error of predicting each pair from the others; None if the system is singular."""
        matrix = self.free if gram is None else self.free + gram.matrix
        inverse = _inverse_lower(_with_noise(matrix, noise))
        if inverse is None:
            return None
        alpha, own = inverse.T @ (inverse @ self.data), (inverse * inverse).sum(axis=0)
        certain = own[1:] * UNCERTAIN_MAX * max(noise, 0.0 if gram is None else 1.0) > 1.0
        if not certain.any():
            return None
        rmse = math.sqrt(float(((alpha[1:] / own[1:])[certain] ** 2).mean()))
        return _Trial(noise, rmse, alpha) if math.isfinite(rmse) else None

    def best(self, gram: Gram | None, noises: Sequence[float]) -> _Trial | None:
        trials = [] if gram is None else [self.leave_one_out(gram, noise) for noise in noises]
        return min((trial for trial in trials if trial), key=lambda trial: trial.rmse, default=None)

    def best_shape(
        self, name: str, shapes: Sequence[tuple[float, float]], scales: Callable[[float, float], Floats]
    ) -> _Model | None:
        found = []
        for power, largest in shapes:
            kernel = Products(scales(power, largest))
            trial = self.best(gram_of(kernel, self.odd, self.z), [NOISE])
            if trial is not None:
                found.append(_Model(name, kernel, NOISE, trial.rmse))
        return min(found, key=lambda model: model.rmse, default=None)


def _select_model(z: Floats, odd_part: Floats, even_part: Floats) -> _Model | None:
    """The model with the smallest error; None if the additive model is as good."""
    bench, n = _Comparison(True, z, odd_part), z.shape[1]
    uniform = gram_of(Uniform(), True, bench.z)
    if uniform is None:
        return None
    name = "uniform interactions of three players"
    if len(bench.z) < n + SPARE_PAIRS_MIN:
        trial = bench.leave_one_out(uniform, NOISE)
        return None if trial is None else _Model(name, Uniform(), NOISE, trial.rmse)
    linear = bench.leave_one_out(None, 1.0)
    unknowns = n + n * (n - 1) * max(0, n - 2) // 6
    first = bench.best(uniform, UNIFORM_NOISES if len(bench.z) > unknowns else UNIFORM_NOISES[1:])
    if linear is None or first is None:
        return None
    models = [_Model(name, Uniform(), first.noise, first.rmse)]
    values = 2.0 * UNPENALISED / n * (bench.z.T @ first.alpha)
    strength = np.abs(values + uniform.scale * (Uniform().values(bench.z).T @ first.alpha))
    strength /= max(TINY, float(strength.max()))
    models += filter(
        None, [bench.best_shape("scales from player values", VALUE_SHAPES, lambda p, t: _scale(strength, p, t)[None])]
    )
    partners = _pairwise(z, even_part)
    if partners is not None:
        found = bench.best_shape(
            "scales from interaction partners", PARTNER_SHAPES, lambda p, t: _partner_scales(partners, p, t)
        )
        models += filter(None, [found])
    best = min(models, key=lambda model: model.rmse)
    if isinstance(best.kernel, Products):
        trial = bench.best(gram_of(best.kernel, True, bench.z), NOISES_BEST)
        if trial is not None and trial.rmse < best.rmse:
            best.noise, best.rmse = trial.noise, trial.rmse
    best.linear_rmse = linear.rmse
    return best if best.rmse < linear.rmse else None


def _scale(share: Floats, power: float, largest: float) -> Floats:
    """`share` to the power ½, 1 or 2, times `largest`."""
    raised = np.sqrt(share) if power < 1.0 else share * share if power > 1.0 else share
    return np.asarray(largest * np.maximum(raised, SCALE_MIN))


def _partner_scales(partners: Floats, power: float, largest: float) -> Floats:
    """One term per player: the strengths of its interactions; its own entry is that of its strongest partner."""
    strength = np.abs(partners)
    np.fill_diagonal(strength, strength.max(axis=1))
    return _scale(strength / max(TINY, float(strength.max())), power, largest)


def _pairwise(z: Floats, even_part: Floats) -> Floats | None:
    """The strength of the interaction of each two players, from the even part; None for too many players."""
    bench = _Comparison(False, z, even_part)
    if bench.n > PARTNERS_MAX:
        return None
    first = bench.best(gram_of(Uniform(), False, bench.z), PAIRWISE_NOISES)
    if first is None:
        return None

    def strengths(trial: _Trial, expected: Floats) -> Floats:
        twos = expected * (bench.z.T @ (trial.alpha[:, None] * bench.z))
        np.fill_diagonal(twos, 0.0)
        return np.asarray(twos)

    start = strengths(first, np.ones((bench.n, bench.n)))
    again = []
    for power, largest in SECOND_SHAPES:
        scales = _partner_scales(start, power, largest)
        trial = bench.best(gram_of(Products(scales), False, bench.z), [NOISE])
        if trial is not None:
            again.append((trial, scales.T @ scales))
    if not again:
        return None
    return strengths(*min(again, key=lambda each: each[0].rmse))


# --- the fit ---


@dataclass
class _OddFit:
    """With M = K + noise and H the signs: `β = (HᵀM⁻¹H)⁻¹HᵀM⁻¹d` and `α = A·d`, A = M⁻¹ − UᵀU."""

    beta: Floats
    alpha: Floats
    inverse: Floats
    u: Floats
    b: Floats

    @classmethod
    def of(cls, gram: Gram, noise: float, z: Floats, data: Floats) -> _OddFit | None:
        """The fit of `data`, one number per side; None if the sides do not determine it."""
        # L⁻¹ of M = L·Lᵀ: its products lose no digits where M is nearly singular.
        inverse = _inverse_lower(_with_noise(gram.matrix, noise))
        if inverse is None:
            return None
        flat, rest = inverse @ z, inverse @ data
        root = _inverse_lower(flat.T @ flat)
        if root is None:
            return None
        beta = root.T @ (root @ (flat.T @ rest))
        u = root @ (flat.T @ inverse)
        return cls(beta, inverse.T @ (rest - flat @ beta), inverse, u, root.T @ u)

    def values(self, read_out: Floats) -> Floats:
        return np.asarray(2.0 * self.beta + self.alpha @ read_out)

    def diagonal(self) -> Floats:
        return np.asarray((self.inverse * self.inverse).sum(axis=0) - (self.u * self.u).sum(axis=0))

    def leave_out_residuals(self, group: list[int]) -> Floats | None:
        """The residuals of a group of sides when all of them are left out; None if the others do not suffice."""
        ours, theirs = self.inverse[:, group], self.u[:, group]
        root = _inverse_lower(ours.T @ ours - theirs.T @ theirs)
        return None if root is None else np.asarray(root.T @ (root @ self.alpha[group]))

    def sensitivities(self, read_out: Floats) -> Floats:
        """The change of each value by each datum: shape (n, sides)."""
        known = self.inverse.T @ (self.inverse @ read_out) - self.u.T @ (self.u @ read_out)
        return np.asarray(2.0 * self.b + known.T)


def _with_sum(values: Floats, total: float) -> Floats:
    return np.asarray(values + (total - values.sum()) / len(values))


def _jackknife(fit: _OddFit, read_out: Floats) -> Floats | None:
    """The standard error of each value, leaving out a tenth of the pairs at a time, in closed form."""
    sides = len(read_out)
    if sides <= GROUPS:
        return None
    responses, moves = fit.sensitivities(read_out), []
    for first in range(1, GROUPS + 1):
        group = list(range(first, sides, GROUPS))
        misses = fit.leave_out_residuals(group)
        if misses is None:
            return None
        moves.append(_with_sum(responses[:, group] @ misses, 0.0))
    apart = np.array(moves) - np.mean(moves, axis=0)
    return np.asarray(np.sqrt((apart**2).sum(axis=0) * (GROUPS - 1.0) / GROUPS))
