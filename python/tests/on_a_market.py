"""The package on a real market, against what the program prints. A test of the workspace starts the market.

    FLORIN=florin FLORIN_MARKET=URL FLORIN_TASK=ID python tests/on_a_market.py
"""

import os
import tempfile
import unittest
from pathlib import Path

import numpy as np
from blake3 import blake3

import florin
from florin.program import run

TASK = os.environ["FLORIN_TASK"]
MARKET = florin.Market()


class OnAMarket(unittest.TestCase):
    def test_the_task_is_listed_and_done(self):
        (task,) = (task for task in MARKET.tasks() if task["id"] == TASK)
        self.assertEqual((task["phase"], task["enrolled"], task["data_units"]), ("done", 3, 100 * 10**18))
        self.assertEqual(MARKET.task(TASK[:8])["id"], TASK)
        self.assertTrue(MARKET.info()["version"])

    def test_statements_are_those_of_the_program(self):
        accounts = {record["account"] for record in MARKET.statements(TASK)}
        self.assertEqual(len(accounts), 4)
        for account in accounts:
            theirs = run(["statement", TASK, account])
            ours = MARKET.statements(TASK, account)
            self.assertEqual(len(ours), len(theirs), account)
            for own, other in zip(ours, theirs):
                self.assertEqual((own["round"], own["account"]), (other["round"], other["account"]))
                self.assertEqual((own["score_nano"], own["error_nano"]), (other["score_nano"], other["error_nano"]))
                self.assertEqual(own["increment_nano"], int(other["increment_nano"]))
                for key in ("payout", "floor", "infrastructure", "debit"):
                    self.assertEqual(own[f"{key}_units"], int(other[key]), key)

    def test_pay_sums_to_the_totals_of_rounds_and_accounts(self):
        rounds, pay = MARKET.rounds(TASK), MARKET.statements(TASK)
        self.assertEqual(sum(rounds.column("data_units")), rounds[-1]["data_total_units"])
        self.assertEqual(sum(pay.column("payout_units")), rounds[-1]["data_total_units"])
        self.assertEqual(sum(MARKET.totals(TASK).column("data_units")), rounds[-1]["data_total_units"])
        self.assertEqual(sum(pay.column("infrastructure_units")), rounds[-1]["infrastructure_total_units"])
        self.assertGreater(rounds[-1]["data_total_units"], 0)

    def test_the_model_is_the_one_that_the_program_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.safetensors"
            digest = run(["task", "model", TASK, "--out", str(file)])["digest"]
            data = file.read_bytes()
        self.assertEqual(blake3(data).hexdigest(), digest)
        self.assertEqual(MARKET.rounds(TASK)[-1]["model"], digest)
        arrays = MARKET.model(TASK)
        self.assertEqual({name: array.shape for name, array in arrays.items()},
                         {"layer0.weight": (10, 64), "layer0.bias": (10,)})  # fmt: skip
        self.assertTrue(data.endswith(b"".join(array.tobytes() for array in arrays.values())))
        self.assertTrue(np.abs(arrays["layer0.weight"]).max() > 0)

    def test_scores_follow_from_the_published_coalitions(self):
        for number in (1, 2):
            report = MARKET.report(TASK, number)
            checked = report["valuation"]["evidence"]["cross_check"]
            table = {frozenset(row["members"]): row["value_nano"] for row in checked["table"]}
            value = lambda coalition: table[coalition] / 1e9
            found = florin.shapley.odd(value, 3, seed=checked["seed"], budget=checked["passes"])
            for ours, theirs in zip(found.values, checked["scores_nano"]):
                self.assertLessEqual(abs(ours * 1e9 - theirs), 10)

    def test_refusals_of_program_and_market_have_their_codes(self):
        for call in (lambda: MARKET.rounds("0" * 64), lambda: run(["task", "show", "0" * 64])):
            with self.assertRaises(florin.FlorinError) as raised:
                call()
            self.assertEqual(raised.exception.code, "UNKNOWN_TASK")
        with self.assertRaises(florin.FlorinError) as raised:
            run(["task", "list", "--market", "http://127.0.0.1:1"])
        self.assertEqual(raised.exception.code, "COORDINATOR_UNAVAILABLE")
        self.assertIn("florin coordinate", raised.exception.remedy)


if __name__ == "__main__":
    unittest.main()
