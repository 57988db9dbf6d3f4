"""The estimators against exact values, against the crate's vectors, and with games that misbehave."""

import json
import math
import unittest
from base64 import b64decode
from itertools import combinations
from pathlib import Path

import numpy as np

import florin
from florin import ValuationError, shapley
from florin.parameters import decode

ROOT = Path(__file__).resolve().parents[2]
SAMPLERS = [shapley.permutation, shapley.antithetic_permutation, shapley.truncated_monte_carlo, shapley.odd]
BY_NAME = {
    "exact": shapley.exact,
    "leave-one-out": shapley.leave_one_out,
    "permutation": shapley.permutation,
    "antithetic-permutation": shapley.antithetic_permutation,
    "truncated-monte-carlo": shapley.truncated_monte_carlo,
    "odd": shapley.odd,
}


def saturating(strengths):
    return lambda coalition: 1.0 - math.exp(-sum(strengths[player] for player in coalition))


def by_definition(value, n):
    """The Shapley values as the sum over all coalitions."""
    values = []
    for player in range(n):
        others = [other for other in range(n) if other != player]
        total = 0.0
        for size in range(n):
            weight = 1.0 / (n * math.comb(n - 1, size))
            for each in combinations(others, size):
                total += weight * (value(frozenset(each) | {player}) - value(frozenset(each)))
        values.append(total)
    return values


class KnownGames(unittest.TestCase):
    def test_passengers_of_a_taxi_share_its_fare(self):
        fares = {"Ada": 6.0, "Bo": 12.0, "Cy": 42.0}
        found = shapley.exact(lambda c: max((fares[name] for name in c), default=0.0), list(fares))
        self.assertEqual(found.by_player(), {"Ada": 2.0, "Bo": 5.0, "Cy": 35.0})
        self.assertEqual((found.total, found.gap, found.evaluations), (42.0, 0.0, 8))

    def test_exact_is_the_definition(self):
        game = saturating([0.1, 0.5, 0.2, 0.9, 0.3])
        np.testing.assert_allclose(shapley.exact(game, 5).values, by_definition(game, 5), rtol=0, atol=1e-14)

    def test_games_of_pairs_are_exact_after_2n_evaluations(self):
        n = 8
        pairs = np.random.default_rng(3).normal(size=(n, n))
        game = lambda c: 2.0 + sum(pairs[i, j] for i in c for j in c)
        right = shapley.exact(game, n).values
        for estimator in (shapley.antithetic_permutation, shapley.odd):
            found = estimator(game, n, seed=1, budget=2 * n)
            np.testing.assert_allclose(found.values, right, atol=1e-10)
            self.assertLessEqual(found.evaluations, 2 * n)

    def test_samplers_are_efficient_and_exact_with_all_coalitions(self):
        game = saturating([0.1, 0.5, 0.2, 0.9, 0.3, 0.4])
        right = shapley.exact(game, 6)
        for estimator in SAMPLERS:
            few = estimator(game, 6, seed=2, budget=14)
            if estimator is not shapley.truncated_monte_carlo:
                self.assertAlmostEqual(few.gap, 0.0, 12)
            every = estimator(game, 6, seed=2, budget=64)
            np.testing.assert_allclose(every.values, right.values, atol=0.01 * right.total)

    def test_errors_of_the_samplers_cover_their_distance(self):
        strengths = list(np.random.default_rng(1).uniform(0.02, 0.3, 12))
        game = saturating(strengths)
        right = shapley.exact(game, 12).values
        for estimator in SAMPLERS:
            within, count = 0, 0
            for seed in range(6):
                found = estimator(game, 12, seed=seed, budget=300)
                within += int((np.abs(found.values - right) <= 2.5 * found.estimator_errors + 1e-4).sum())
                count += 12
            self.assertGreater(within / count, 0.85, estimator.__name__)

    def test_a_tolerance_ends_a_run(self):
        game = saturating([0.1 + 0.02 * i for i in range(12)])
        right = shapley.exact(game, 12).values
        for estimator in SAMPLERS:
            found = estimator(game, 12, seed=5, tolerance=0.05)
            self.assertLess(np.linalg.norm(found.values - right), 0.2 * np.linalg.norm(right))
            self.assertLess(found.evaluations, 4_096)

    def test_one_seed_is_one_result(self):
        game = saturating([0.1 + 0.01 * i for i in range(30)])
        for estimator in SAMPLERS:
            first, second = (estimator(game, 30, seed=9, budget=130) for _ in range(2))
            np.testing.assert_array_equal(first.values, second.values)
            self.assertFalse(np.array_equal(first.values, estimator(game, 30, seed=10, budget=130).values))

    def test_one_player_gets_everything(self):
        game = lambda c: 3.5 if c else 1.0
        for estimator in (shapley.exact, shapley.leave_one_out, *SAMPLERS):
            self.assertEqual(estimator(game, ["Ada"]).by_player(), {"Ada": 2.5})

    def test_rows_give_standard_errors(self):
        rows = np.random.default_rng(7).normal(size=(3, 50)) + 1.0
        found = shapley.exact(lambda c: sum((rows[i] for i in c), np.zeros(50)), 3)
        np.testing.assert_allclose(found.values, rows.mean(axis=1))
        np.testing.assert_allclose(found.standard_errors, rows.std(axis=1, ddof=1) / math.sqrt(50))
        self.assertIsNone(shapley.exact(lambda c: float(len(c)), 3).standard_errors)

    def test_many_players_are_sampled(self):
        game = lambda c: math.sqrt(len(c))
        for estimator in SAMPLERS:
            found = estimator(game, 200, seed=1, budget=420)
            self.assertEqual(len(found.values), 200)
            self.assertLessEqual(found.evaluations, 420)


class Paths(unittest.TestCase):
    def test_a_path_integrates_polynomials_exactly(self):
        # v(x) = Σ a_i x_i + (Σ x_i)³, whose derivative on the diagonal is a_i + 3 (n t)².
        a = np.array([1.0, -2.0, 0.5])
        found = shapley.path(lambda t: a + 27.0 * t * t, 3, diagonal=lambda t: a.sum() * t + 27.0 * t**3, nodes=2)
        np.testing.assert_allclose(found.values, a + 9.0, atol=1e-14)
        self.assertAlmostEqual(found.gap, 0.0, 12)
        self.assertEqual((found.gradients, found.evaluations, found.total), (2, 2, 26.5))
        self.assertAlmostEqual(sum(node.weight for node in found.nodes), 1.0)

    def test_a_path_has_errors_over_rows(self):
        rows = np.random.default_rng(2).normal(size=(2, 40))
        found = shapley.path(lambda t: rows * 2.0 * t, ["a", "b"])
        np.testing.assert_allclose(found.values, rows.mean(axis=1))
        np.testing.assert_allclose(found.standard_errors, rows.std(axis=1, ddof=1) / math.sqrt(40))
        self.assertIsNone(found.total)

    def test_nodes_are_added_until_the_gap_is_small(self):
        slopes, diagonal = lambda t: [math.exp(5 * t)] * 2, lambda t: 0.4 * math.exp(5 * t)
        found = shapley.path(slopes, 2, diagonal=diagonal, tolerance=1e-9)
        self.assertGreater(len(found.nodes), 3)
        self.assertLess(abs(found.gap), 1e-9 * found.total)

    def test_quadrature_is_exact_up_to_its_degree(self):
        for nodes in (*range(1, 9), 12):
            t, weight = shapley.path.__globals__["gauss_legendre"](nodes)
            for degree in range(2 * nodes):
                self.assertAlmostEqual(float(weight @ t**degree), 1.0 / (degree + 1), 14)

    def test_misbehaving_gradients_are_refused(self):
        good = lambda t: [1.0, 2.0]
        for code, call in [
            ("NODES_OUT_OF_RANGE", lambda: shapley.path(good, 2, nodes=9)),
            ("NODES_OUT_OF_RANGE", lambda: shapley.path(good, 2, nodes=0)),
            ("SHAPE_MISMATCH", lambda: shapley.path(good, 3)),
            ("SHAPE_MISMATCH", lambda: shapley.path(lambda t: 1.0, 2)),
            ("DERIVATIVE_NOT_FINITE", lambda: shapley.path(lambda t: [1.0, math.nan], 2)),
            ("DIAGONAL_NOT_FINITE", lambda: shapley.path(good, 2, diagonal=lambda t: math.inf)),
            ("SETTING_OUT_OF_RANGE", lambda: shapley.path(good, 2, tolerance=0.1)),
            ("GAME_FAILED", lambda: shapley.path(lambda t: 1 / 0, 2)),
        ]:
            with self.assertRaises(ValuationError) as raised:
                call()
            self.assertEqual(raised.exception.code, code)


class MisbehavingGames(unittest.TestCase):
    def refused(self, code, call):
        with self.assertRaises(ValuationError) as raised:
            call()
        self.assertEqual(raised.exception.code, code, raised.exception)
        return raised.exception

    def test_settings_out_of_bounds_are_refused(self):
        game = lambda c: float(len(c))
        for estimator in (shapley.exact, shapley.leave_one_out, *SAMPLERS):
            self.refused("NO_PLAYERS", lambda: estimator(game, 0))
            self.refused("NO_PLAYERS", lambda: estimator(game, []))
            self.refused("NO_PLAYERS", lambda: estimator(game, -3))
            self.refused("DUPLICATE_ID", lambda: estimator(game, ["a", "b", "a"]))
            self.refused("PLAYERS_INVALID", lambda: estimator(game, "abc"))
            self.refused("PLAYERS_INVALID", lambda: estimator(game, 2.5))
            self.refused("GAME_FAILED", lambda: estimator(None, 3))
        self.refused("TOO_MANY_PLAYERS", lambda: shapley.exact(game, 30))
        self.refused("TOO_MANY_PLAYERS", lambda: shapley.permutation(game, 10**9))
        for estimator in SAMPLERS:
            self.refused("BUDGET_TOO_SMALL", lambda: estimator(game, 10, budget=5))
            self.refused("SETTING_OUT_OF_RANGE", lambda: estimator(game, 10, budget=-1))
            self.refused("SETTING_OUT_OF_RANGE", lambda: estimator(game, 10, budget=1e3))
            self.refused("SETTING_OUT_OF_RANGE", lambda: estimator(game, 10, seed=-1))
            self.refused("SETTING_OUT_OF_RANGE", lambda: estimator(game, 10, seed=1 << 64))
            self.refused("TOLERANCE_OUT_OF_RANGE", lambda: estimator(game, 10, tolerance=0.0))
            self.refused("TOLERANCE_OUT_OF_RANGE", lambda: estimator(game, 10, tolerance=math.nan))
        self.refused("SETTING_OUT_OF_RANGE", lambda: shapley.truncated_monte_carlo(game, 4, truncation=2))

    def test_values_that_are_no_numbers_name_their_coalition(self):
        for estimator in (shapley.exact, shapley.leave_one_out, *SAMPLERS):
            bad = lambda c: math.nan if "b" in c else 1.0
            error = self.refused("VALUE_NOT_FINITE", lambda: estimator(bad, ["a", "b", "c"]))
            self.assertIn("'b'", str(error))
            self.refused("GAME_FAILED", lambda: estimator(lambda c: None, 3))
            self.refused("GAME_FAILED", lambda: estimator(lambda c: "much", 3))
            self.refused("SHAPE_MISMATCH", lambda: estimator(lambda c: [], 3))
            self.refused("SHAPE_MISMATCH", lambda: estimator(lambda c: [0.0] * (1 + len(c)), 3))

    def test_an_exception_of_the_game_is_the_cause(self):
        def game(coalition):
            raise RuntimeError("out of memory")

        error = self.refused("GAME_FAILED", lambda: shapley.exact(game, ["a", "b"]))
        self.assertIn("out of memory", str(error))
        self.assertIsInstance(error.__cause__, RuntimeError)
        self.assertIsInstance(error, florin.FlorinError)
        self.assertIsInstance(error, ValueError)

    def test_each_coalition_is_evaluated_once(self):
        for estimator in SAMPLERS:
            asked = []
            estimator(lambda c: asked.append(c) or math.sqrt(len(c)), 9, seed=4, budget=200)
            self.assertEqual(len(asked), len(set(asked)))


class Round:
    """A round of softmax regression in `valued_rounds.json` as a game, with the bounded loss of docs/protocol.md."""

    def __init__(self, vector):
        spec, valuation = vector["task"]["model"], vector["result"]["valuation"]
        self.classes = spec["classes"]
        shapes = {"layer0.weight": (self.classes, spec["inputs"]), "layer0.bias": (self.classes,)}
        base = decode(bytearray(b64decode(vector["base_model"])), shapes)
        self.base = np.concatenate([array.reshape(-1) for array in base.values()]).astype(np.float64)
        self.features, self.labels = self._rows(b64decode(vector["disclosed_rows"]))
        before = [score["preprocessing"] for score in valuation["scores"]]
        weights = np.array([each["weight"] for each in before], dtype=np.float64)
        factors = np.array([float(each["norm_factor"]) for each in before])
        updates = np.array([np.frombuffer(b64decode(update), "<f4") for update in vector["updates"]], dtype=np.float64)
        scaled = (updates * factors[:, None]).astype(np.float32).astype(np.float64)
        self.steps = scaled * (weights / weights.sum())[:, None]

    def _rows(self, data):
        """Features and labels of the disclosed rows (borsh: index, blind, row, proof)."""
        features, labels, at = [], [], 4
        for _ in range(int.from_bytes(data[:4], "little")):
            size = int.from_bytes(data[at + 36 : at + 40], "little")
            row = data[at + 40 : at + 40 + size]
            features.append(np.frombuffer(row[:-4], "<f4"))
            labels.append(int.from_bytes(row[-4:], "little"))
            at += 40 + size
            at += 4 + 32 * int.from_bytes(data[at : at + 4], "little")
        return np.array(features, dtype=np.float64), np.array(labels)

    def chances(self, params):
        weight, bias = params[: -self.classes].reshape(self.classes, -1), params[-self.classes :]
        raised = np.exp(self.features @ weight.T + bias)
        return raised / raised.sum(axis=1, keepdims=True)

    def losses(self, params):
        least = self.classes**-2.0
        return -np.log((1 - least) * self.chances(params)[np.arange(len(self.labels)), self.labels] + least)

    def value(self, coalition):
        return self.losses(self.base) - self.losses(self.base + self.steps[sorted(coalition)].sum(axis=0))

    def gradients(self, t):
        """The gradient of each row's loss at the point t of the path: shape (rows, parameters)."""
        least, rows = self.classes**-2.0, np.arange(len(self.labels))
        chances = self.chances(self.base + t * self.steps.sum(axis=0))
        own = chances[rows, self.labels][:, None]
        logits = -(1 - least) * own * (np.eye(self.classes)[self.labels] - chances) / ((1 - least) * own + least)
        inputs = (logits[:, :, None] * self.features[:, None, :]).reshape(len(rows), -1)
        return np.concatenate([inputs, logits], axis=1)

    def null_deviations(self):
        gradient = self.gradients(0.5).mean(axis=0)
        return np.linalg.norm(self.steps, axis=1) * np.linalg.norm(gradient) / math.sqrt(len(gradient))


class Vectors(unittest.TestCase):
    def test_path_and_exact_value_rounds_as_the_market_does(self):
        vectors = json.loads((ROOT / "protocol/vectors/valued_rounds.json").read_text())
        single = [v for v in vectors if len(v["result"]["valuation"]["stages"]) == 1]
        chosen = [v for v in single if "nodes" in v["name"] or "Shapley" in v["name"]]
        self.assertEqual(len(chosen), 4)
        for vector in chosen:
            played, valuation = Round(vector), vector["result"]["valuation"]
            n, estimator = len(played.steps), valuation["stages"][0]["estimator"]
            if estimator == "shapley":
                found = shapley.exact(played.value, n)
            else:
                along = lambda t: -(played.gradients(t) @ played.steps.T).T
                whole = played.steps.sum(axis=0)
                diagonal = lambda t: played.losses(played.base) - played.losses(played.base + t * whole)
                found = shapley.path(along, n, diagonal=diagonal, nodes=estimator["path"])
                for node, derivatives in zip(found.nodes, np.array(valuation["evidence"]["derivatives_nano"]).T):
                    np.testing.assert_allclose(node.derivatives * 1e9, derivatives, rtol=0, atol=10)
            errors = np.hypot(found.standard_errors, played.null_deviations())
            for at, score in enumerate(valuation["scores"]):
                self.assertLessEqual(abs(found.values[at] * 1e9 - score["score_nano"]), 10, vector["name"])
                self.assertLessEqual(abs(errors[at] * 1e9 - score["error_nano"]), 10, vector["name"])
            self.assertLessEqual(abs(found.gap * 1e9 - valuation["gap_nano"]), 10 * n, vector["name"])
            self.assertLessEqual(abs(found.total * 1e9 - valuation["total_nano"]), 10, vector["name"])

    def test_estimators_reproduce_the_vectors_of_the_crate(self):
        games = json.loads((ROOT / "contribution/tests/vectors/estimators.json").read_text())
        cases = 0
        for game in games:
            table = game["table"]
            value = lambda c: table[sum(1 << player for player in c)]
            for case in game["cases"]:
                name = case["estimator"]
                limits = {} if name in ("exact", "leave-one-out") else {"seed": game["seed"], "budget": case["budget"]}
                found = BY_NAME[name](value, game["players"], **limits)
                where = f"{game['name']}, {name}, {case['budget']}"
                self.assertEqual(found.evaluations, case["evaluations"], where)
                np.testing.assert_allclose(found.values, case["values"], rtol=0, atol=1e-8, err_msg=where)
                self.assertAlmostEqual(found.gap, case["gap"], 8, where)
                if case["errors"] is None:
                    self.assertTrue(found.estimator_errors is None or name == "leave-one-out", where)
                else:
                    np.testing.assert_allclose(found.estimator_errors, case["errors"], atol=1e-8, err_msg=where)
                cases += 1
        self.assertGreater(cases, 60)

    def test_odd_reproduces_cross_checks_of_reports(self):
        for vector in json.loads((ROOT / "protocol/vectors/cross_checks.json").read_text()):
            table = {frozenset(row["members"]): row["value_nano"] for row in vector["table"]}
            asked = set()

            def value(coalition):
                asked.add(coalition)
                return table[coalition] / 1e9

            n = vector["players"]
            found = shapley.odd(value, n, seed=int(vector["seed"]), budget=2 + 2 * vector["pairs"] * n)
            self.assertEqual(asked, set(table), vector["name"])
            for ours, right in zip(found.values, vector["scores_nano"]):
                self.assertLessEqual(abs(ours * 1e9 - right), 10, vector["name"])


if __name__ == "__main__":
    unittest.main()
