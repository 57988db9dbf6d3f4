"""Third-party Shapley estimators on the games that `florin-bench contribution` writes.

Reads FOLDER/games.json, a list of {"name", "budgets", "exact", "instances": [{"file", "seed", "players"}]},
where each file is a complete game: 2^players doubles, little endian; bit 0 of the index is player 0.
An estimator accesses a game only through its value function v(S), which counts the distinct coalitions
that were evaluated. Prints the versions of the packages first, then one JSON line per (estimator,
instance, budget). Exact values are recomputed here and compared with those in games.json.

usage: PYTHONPATH=PACKAGES python3 contribution.py FOLDER [--seconds S] [--only NAME]
"""

import argparse
import importlib.metadata
import json
import math
import pathlib
import platform
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import numpy
from pydvl.valuation import (
    AntitheticOwenSampler,
    AntitheticPermutationSampler,
    Dataset,
    PermutationSampler,
    RandomIndexIteration,
    RelativeTruncation,
    ShapleyValuation,
    UniformOwenStrategy,
)
from pydvl.utils.status import Status
from pydvl.valuation.stopping import StoppingCriterion
from pydvl.valuation.utility.base import UtilityBase
from shapiq.approximator import (
    SVARM,
    KernelSHAP,
    OwenSamplingSV,
    PermutationSamplingSV,
    StratifiedSamplingSV,
    UnbiasedKernelSHAP,
    kADDSHAP,
)

# Budgets of an estimator stop growing once its median error is below this.
ENOUGH = 0.002
# Samplers that repeat coalitions may make up to 2^REPEATS times the largest budget of calls.
REPEATS = 5
# Relative tolerance of exact values; a larger difference means that the two programs read different games.
AGREEMENT = 1e-9
# The files are little endian.
DOUBLES = numpy.dtype("<f8")


class Game:
    """One instance: coalition values by bit mask, and the set of evaluated coalitions."""

    def __init__(self, folder, instance):
        self.players = instance["players"]
        self.seed = instance["seed"]
        self.worths = numpy.fromfile(folder / instance["file"], dtype=DOUBLES)
        if len(self.worths) != 1 << self.players:
            sys.exit(f"{instance['file']} has {len(self.worths)} worths for {self.players} players")
        self.bits = 1 << numpy.arange(self.players, dtype=numpy.int64)
        self.exact = shapley(self.worths, self.players)
        self.forget()

    def forget(self):
        self.asked = numpy.zeros(len(self.worths), dtype=bool)

    def __call__(self, coalitions):
        masks = numpy.atleast_2d(coalitions).astype(numpy.int64) @ self.bits
        self.asked[masks] = True
        return self.worths[masks]

    def of_mask(self, mask):
        self.asked[mask] = True
        return float(self.worths[mask])

    def evaluations(self):
        return int(self.asked.sum())

    def error(self, values):
        return float(numpy.linalg.norm(values - self.exact) / numpy.linalg.norm(self.exact))


def shapley(worths, players):
    """Exact Shapley values from all coalition values: weighted sums of marginal contributions."""
    masks = numpy.arange(len(worths))
    sizes = numpy.zeros(len(worths), dtype=numpy.int64)
    for player in range(players):
        sizes += masks >> player & 1
    weights = numpy.array([1 / (players * math.comb(players - 1, size)) for size in range(players)])
    values = numpy.empty(players)
    for player in range(players):
        without = masks[masks >> player & 1 == 0]
        gains = worths[without | 1 << player] - worths[without]
        values[player] = weights[sizes[without]] @ gains
    return values


# shapiq: one run per budget. A budget counts calls, also repeated ones, so for a sampler that repeats
# coalitions of a small game the budget may exceed the number of coalitions by far.


def of_shapiq(build, repeats=False):
    def run(game, budgets, deadline):
        for budget in budgets:
            if time.process_time() > deadline:
                return
            game.forget()
            begun = time.process_time()
            found = build(game.players, game.seed).approximate(budget, game)
            seconds = time.process_time() - begun
            values = numpy.zeros(game.players)
            for coalition, value in found.dict_values.items():
                if len(coalition) == 1:
                    values[coalition[0]] = value
            yield budget, game.evaluations(), game.error(values), seconds

    run.repeats = repeats
    return run


# pyDVL: one run, with a reading of the error whenever a budget is used up.


class TableUtility(UtilityBase):
    def __init__(self, game):
        self.game = game

    def __call__(self, sample):
        if sample is None:
            return self.game.of_mask(0)
        return self.game.of_mask(int(self.game.bits[list(sample.subset)].sum()))


class Watch(StoppingCriterion):
    """Records the error when a budget is used up, and stops at the last budget or at the deadline."""

    def __init__(self, game, budgets, deadline):
        super().__init__()
        self.game, self.left, self.deadline = game, list(budgets), deadline
        self.seen = []
        self.begun = time.process_time()
        self.watching = 0.0

    def _check(self, result):
        now = time.process_time()
        seconds = now - self.begun - self.watching
        evaluations = self.game.evaluations() if self.left else 0
        while self.left and evaluations >= self.left[0]:
            error = self.game.error(result.values)
            self.seen.append((self.left.pop(0), evaluations, error, seconds))
        self.watching += time.process_time() - now
        if not self.left or now > self.deadline:
            self._converged = numpy.full_like(result.indices, True, dtype=bool)
            return Status.Converged
        return Status.Pending

    def completion(self):
        return 0.0


def of_pydvl(sampler):
    def run(game, budgets, deadline):
        game.forget()
        watch = Watch(game, budgets, deadline)
        ends = numpy.arange(game.players).reshape(-1, 1)
        players = Dataset(ends, numpy.zeros(game.players))
        valuation = ShapleyValuation(
            TableUtility(game), sampler(game), is_done=watch, progress=False, show_warnings=False
        )
        valuation.fit(players)
        yield from watch.seen

    run.whole = True
    return run


def truncated(game):
    # The library's defaults for truncated Monte Carlo.
    truncation = RelativeTruncation(rtol=0.01, burn_in_fraction=0.4)
    return PermutationSampler(truncation=truncation, seed=game.seed)


def antithetic_owen(game):
    return AntitheticOwenSampler(
        UniformOwenStrategy(n_samples_outer=1, seed=game.seed),
        n_samples_inner=1,
        index_iteration=RandomIndexIteration,
        seed=game.seed,
    )


ESTIMATORS = {
    "shapiq KernelSHAP": of_shapiq(lambda n, seed: KernelSHAP(n, random_state=seed)),
    "shapiq KernelSHAP, paired": of_shapiq(
        lambda n, seed: KernelSHAP(n, pairing_trick=True, random_state=seed)
    ),
    "shapiq UnbiasedKernelSHAP, paired": of_shapiq(
        lambda n, seed: UnbiasedKernelSHAP(n, pairing_trick=True, random_state=seed)
    ),
    "shapiq kADD-SHAP k=2, paired": of_shapiq(
        lambda n, seed: kADDSHAP(n, max_order=2, pairing_trick=True, random_state=seed)
    ),
    "shapiq kADD-SHAP k=3, paired": of_shapiq(
        lambda n, seed: kADDSHAP(n, max_order=3, pairing_trick=True, random_state=seed)
    ),
    "shapiq SVARM": of_shapiq(lambda n, seed: SVARM(n, random_state=seed)),
    "shapiq StratifiedSampling": of_shapiq(
        lambda n, seed: StratifiedSamplingSV(n, random_state=seed), repeats=True
    ),
    "shapiq PermutationSampling": of_shapiq(
        lambda n, seed: PermutationSamplingSV(n, random_state=seed), repeats=True
    ),
    "shapiq OwenSampling": of_shapiq(
        lambda n, seed: OwenSamplingSV(n, random_state=seed), repeats=True
    ),
    "pyDVL permutation": of_pydvl(lambda game: PermutationSampler(seed=game.seed)),
    "pyDVL antithetic permutation": of_pydvl(
        lambda game: AntitheticPermutationSampler(seed=game.seed)
    ),
    "pyDVL truncated (TMC)": of_pydvl(truncated),
    "pyDVL antithetic Owen": of_pydvl(antithetic_owen),
}


def trials(run, games, budgets, seconds):
    """Runs all instances of one game with growing budgets, until the error is small enough or time is over."""
    begun = time.process_time()
    if getattr(run, "whole", False):
        for at, game in enumerate(games):
            deadline = begun + seconds * (at + 1) / len(games)
            for line in run(game, budgets, deadline):
                yield at, line
        return
    if run.repeats:
        budgets = budgets + [budgets[-1] << more for more in range(1, REPEATS + 1)]
    for budget in budgets:
        errors = []
        for at, game in enumerate(games):
            for line in run(game, [budget], begun + seconds):
                errors.append(line[2])
                yield at, line
        if len(errors) < len(games) or numpy.median(errors) < ENOUGH:
            return


def versions():
    names = ["shapiq", "pyDVL", "numpy", "scipy"]
    found = {name: importlib.metadata.version(name) for name in names}
    return {"Python": platform.python_version(), **found}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="processor time limit for one estimator on one game")
    parser.add_argument("--only", help="only estimators whose names contain this")
    return parser.parse_args()


def main():
    options = arguments()
    print(json.dumps({"versions": versions()}), flush=True)
    for played in json.loads((options.folder / "games.json").read_text()):
        games = [Game(options.folder, instance) for instance in played["instances"]]
        for game, instance in zip(games, played["instances"]):
            apart = numpy.abs(game.exact - numpy.array(instance["exact"])).max()
            if not apart <= AGREEMENT * numpy.abs(game.exact).max():
                sys.exit(f"{played['name']}: exact values differ by {apart}")
        for name, run in ESTIMATORS.items():
            if options.only and options.only not in name:
                continue
            for at, (budget, evaluations, error, seconds) in trials(
                run, games, played["budgets"], options.seconds
            ):
                print(json.dumps({
                    "estimator": name,
                    "game": played["name"],
                    "instance": at,
                    "budget": budget,
                    "evaluations": evaluations,
                    "error": error,
                    "seconds": seconds,
                }), flush=True)


if __name__ == "__main__":
    main()
