"""A market is read exactly, and each response is a table or an error with a code."""

import json
import random
import socket
import sys
import time
import unittest
from decimal import Decimal
from unittest import mock

import numpy as np
import pandas
from blake3 import blake3

import florin
from fake_market import ANN, BEN, PROVIDER, TASK, FakeMarket, report, send, view
from florin import FlorinError, Market

FLN = 10**18


def answers(**more):
    return {f"tasks/{TASK}": view(), f"tasks/{TASK}/rounds/1/report": report(), **more}


class Refusals(unittest.TestCase):
    def refused(self, code, call):
        with self.assertRaises(FlorinError) as raised:
            call()
        self.assertEqual(raised.exception.code, code, raised.exception)
        return raised.exception


class Tables(unittest.TestCase):
    def setUp(self):
        self.fake = self.enterContext(FakeMarket(answers()))
        self.market = Market(self.fake.url)

    def test_money_and_scores_are_exact(self):
        first, second, provider, missing = self.market.statements(TASK)
        self.assertEqual(first["payout_units"], 10**27 + 1)
        self.assertEqual((first["score_nano"], first["increment_nano"]), (2**53 + 1, 2**80))
        self.assertEqual(florin.fln(first["payout_units"]), Decimal("1000000000.000000000000000001"))
        self.assertEqual((second["debit_units"], second["reason"]), (FLN // 4, "excluded"))
        self.assertEqual((provider["account"], provider["infrastructure_units"]), (PROVIDER, FLN))
        self.assertEqual((provider["score_nano"], provider["reason"]), (None, "work"))
        self.assertEqual((missing["reason"], missing["payout_units"]), ("rejected TOO_LARGE", 0))

    def test_a_frame_sums_money_without_a_loss(self):
        frame = self.market.statements(TASK).frame()
        total = pandas.concat([frame] * 30).groupby("account")["payout_units"].sum()
        # NumPy's floats would compare equal to an integer that they round.
        self.assertEqual((type(total[ANN]), total[ANN]), (int, 30 * (10**27 + 1)))
        self.assertEqual((type(frame["score_nano"][0]), frame["score_nano"][0]), (int, 2**53 + 1))
        self.assertEqual(list(frame.columns), list(self.market.statements(TASK).columns))
        self.assertEqual(self.market.scores(TASK).frame()["excluded"].sum(), 1)
        self.assertEqual(self.market.rounds(TASK).frame()["rows"].sum(), 20)

    def test_rounds_and_scores_are_those_of_the_report(self):
        (found,) = self.market.rounds(TASK)
        self.assertEqual((found["outcome"], found["estimator"], found["updates"]), ("settled", "path 3", 2))
        self.assertEqual((found["correct_after"], found["loss_after_nano"]), (11, 1_500_000_000))
        self.assertEqual((found["data_units"], found["infrastructure_units"]), (10**27 + 1, FLN))
        ann, ben = self.market.scores(TASK)
        self.assertEqual((ann["cross_check_nano"], ann["norm_factor_micro"]), (2**53 + 2, 1_250_000))
        self.assertEqual((ben["cross_check_nano"], ben["duplicate"], ben["excluded"]), (None, "same_round", True))

    def test_totals_are_those_of_the_last_report(self):
        (found,) = self.market.totals(TASK)
        self.assertEqual((found["score_sum_nano"], found["data_units"], found["debited_units"]), (-5, 3 * FLN // 2, 1))

    def test_rounds_that_were_not_valued_have_empty_figures(self):
        outcome = {"abandoned": {"too_few_updates": {"got": 1, "needed": 3}}}
        body = report(outcome=outcome, valuation=None, metrics=None, lines=[], infrastructure=[])
        self.fake.answers[f"tasks/{TASK}/rounds/1/report"] = body
        (found,) = self.market.rounds(TASK)
        self.assertEqual((found["outcome"], found["reason"], found["rows"]), ("abandoned", "too_few_updates", None))
        self.assertEqual(len(self.market.scores(TASK)), 0)
        reasons = self.market.statements(TASK).column("reason")
        self.assertEqual(reasons, ["abandoned too_few_updates"] * 2 + ["rejected TOO_LARGE"])
        self.assertEqual(len(self.market.rounds(TASK).frame()), 1)

    def test_a_task_without_reports_has_empty_tables(self):
        self.fake.answers[f"tasks/{TASK}"] = view(reported=0)
        for read in (self.market.rounds, self.market.scores, self.market.statements, self.market.totals):
            table = read(TASK)
            self.assertEqual((len(table), table.records()), (0, []))
            self.assertEqual(list(table.frame().columns), list(table.columns))
            self.assertIn(table.columns[0], repr(table))

    def test_reports_are_fetched_once(self):
        for _ in range(3):
            self.market.rounds(TASK), self.market.scores(TASK)
        self.assertEqual(sum("report" in path for path in self.fake.asked), 1)

    def test_an_account_is_found_in_any_case(self):
        self.assertEqual(len(self.market.statements(TASK, BEN.lower())), 1)
        self.assertEqual(len(self.market.statements(TASK, "0x" + "e" * 40)), 0)

    def test_without_pandas_there_are_records(self):
        table = self.market.scores(TASK)
        with mock.patch.dict(sys.modules, {"pandas": None}), self.assertRaises(FlorinError) as raised:
            table.frame()
        self.assertEqual(raised.exception.code, "PANDAS_MISSING")
        self.assertIn(".records()", raised.exception.remedy)
        self.assertEqual(len(table.records()), 2)
        self.assertEqual(len(table[:1]), 1)

    def test_florins_are_decimal_and_exact(self):
        self.assertEqual(florin.fln(2**128 - 1), Decimal("340282366920938463463.374607431768211455"))
        self.assertEqual(florin.fln(-1), Decimal("-0.000000000000000001"))
        self.assertEqual([str(florin.fln(units)) for units in (0, 10 * FLN, FLN // 2, -FLN)], ["0", "10", "0.5", "-1"])
        for bad in (1.5, "1", True):
            with self.assertRaises(FlorinError):
                florin.fln(bad)


class Ids(Refusals):
    def test_a_shortened_id_must_match_one_task(self):
        def task(first):
            rest = {"name": "t", "phase": "done", "round": 1, "rounds": 1, "enrolled": 2}
            return {"id": first.ljust(64, "0"), **rest, "data": "0.1", "infrastructure": "0"}

        with FakeMarket({"tasks": [task("abcdef1"), task("abcdef2"), task("123456")]}) as fake:
            market = Market(fake.url)
            self.assertEqual(market.tasks().column("data_units"), [FLN // 10] * 3)
            self.assertEqual(self.refused("AMBIGUOUS_ID", lambda: market.rounds("abcdef")).code, "AMBIGUOUS_ID")
            self.refused("UNKNOWN_TASK", lambda: market.rounds("fedcba"))
            for bad in ("12345", "xyzxyz", "", "a" * 65, None, 123456, "../../x"):
                self.refused("INVALID_ID", lambda: market.rounds(bad))
            # A whole id is asked of the coordinator, whose code and message come back.
            error = self.refused("UNKNOWN_TASK", lambda: market.rounds(TASK))
            self.assertEqual(error.message, "there is no such task")
            self.refused("INVALID_ROUND", lambda: market.report(TASK, 0))
            self.refused("INVALID_ADDRESS", lambda: market.statements(TASK, "ann"))


class Connections(Refusals):
    def test_a_wrong_url_is_refused_before_any_request(self):
        for url in ("ftp://host", "file:///etc/passwd", "host:7700", "http://", "http://h:0", "http://h:x", "http://h ",
                    "http://user@host", "http://h/?q", "x" * 5_000):  # fmt: skip
            self.refused("INVALID_URL", lambda: Market(url))
        with mock.patch.dict("os.environ", clear=True):
            self.assertIn("FLORIN_MARKET", self.refused("MARKET_NOT_SET", Market).remedy)
        self.refused("CERTIFICATE_NOT_NEEDED", lambda: Market("http://h", certificate="c.pem"))
        self.refused("CERTIFICATE_UNREADABLE", lambda: Market("https://h", certificate="/no/such.pem"))
        self.refused("SETTING_OUT_OF_RANGE", lambda: Market("http://h", timeout=0))

    def test_a_market_that_is_down_is_named_with_a_remedy(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        error = self.refused("COORDINATOR_UNAVAILABLE", lambda: Market(url).tasks())
        self.assertIn("florin coordinate", error.remedy)
        self.assertIn(url, str(error))

    def test_a_silent_and_a_broken_connection_end(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            self.refused("COORDINATOR_UNAVAILABLE", lambda: Market(url, timeout=0.2).tasks())

        def cut(handler):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[1, ")

        def nonsense(handler):
            handler.wfile.write(b"\x00\xff SSH-2.0\r\n\r\n")

        with FakeMarket({"tasks": cut, "market": nonsense}) as fake:
            self.refused("INVALID_RESPONSE", lambda: Market(fake.url).tasks())
            self.refused("COORDINATOR_UNAVAILABLE", lambda: Market(fake.url).info())

    def test_a_slow_response_has_a_limit(self):
        def drip(handler):
            send(handler, 200, b"")
            try:
                for _ in range(100):
                    handler.wfile.write(b" ")
                    time.sleep(0.05)
            except OSError:
                pass

        def endless(handler):
            handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
            drip(handler)

        with FakeMarket({"tasks": endless}) as fake, mock.patch("florin.http.JSON_TIMEOUT_S", 0.2), \
                mock.patch("florin.http.CHUNK_BYTES", 1):  # fmt: skip
            begun = time.monotonic()
            self.refused("COORDINATOR_UNAVAILABLE", lambda: Market(fake.url).tasks())
            self.assertLess(time.monotonic() - begun, 3.0)

    def test_redirects_are_not_followed(self):
        with FakeMarket({"elsewhere": []}) as other, FakeMarket({}) as fake:
            fake.answers["tasks"] = lambda handler: send(handler, 302, b"", [("Location", other.url + "/v1/elsewhere")])
            self.refused("INVALID_RESPONSE", lambda: Market(fake.url).tasks())
            self.assertEqual(other.asked, [])

    def test_a_rate_limit_is_waited_for(self):
        refusal = json.dumps({"code": "RATE_LIMITED", "message": "slower"}).encode()

        def busy(handler):
            send(handler, 429, refusal, [("Retry-After", "0")])

        with FakeMarket({"tasks": busy}) as fake:
            self.refused("RATE_LIMITED", lambda: Market(fake.url).tasks())
            self.assertEqual(len(fake.asked), 10)


class HostileResponses(Refusals):
    def test_what_is_no_list_of_tasks_is_refused(self):
        deep = b"[" * 200_000 + b"]" * 200_000
        long = b"[" + b"9" * 5_000 + b"]"
        for body in (b"", b"null", b"{}", b"[1]", b"[{}]", b"\xff", b"[NaN]", b"<html>", deep, long):
            with FakeMarket({"tasks": body}) as fake:
                self.refused("INVALID_RESPONSE", lambda: Market(fake.url).tasks())

    def test_a_long_response_is_not_read_to_its_end(self):
        def long(handler):
            handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n[")
            try:
                while True:
                    handler.wfile.write(b" " * 65_536)
            except OSError:
                pass

        with FakeMarket({"tasks": long}) as fake, mock.patch("florin.http.JSON_BYTES_MAX", 1 << 20):
            self.assertIn("longer than", str(self.refused("INVALID_RESPONSE", lambda: Market(fake.url).tasks())))

    def test_a_report_of_another_task_or_round_is_refused(self):
        with FakeMarket(answers()) as fake:
            fake.answers[f"tasks/{TASK}/rounds/1/report"] = report(number=2)
            self.refused("UNEXPECTED_CONTENT", lambda: Market(fake.url).rounds(TASK))
            fake.answers[f"tasks/{TASK}"] = {**view(), "id": "cd" * 32}
            self.refused("UNEXPECTED_CONTENT", lambda: Market(fake.url).rounds(TASK))

    def test_a_report_with_any_wrong_field_is_a_table_or_a_refusal(self):
        """Each value of a report in turn is replaced by each of many wrong ones."""
        wrong = [None, True, -1, 2**70, 1.5, "", "x", "1e5", "-1", [], [1], {}, {"a": 1, "b": 2}, "9" * 50]
        draw, tried = random.Random(1), 0
        with FakeMarket(answers()) as fake:
            for path in list(paths_of(report()["body"])):
                changed = report()["body"]
                place = changed
                for key in path[:-1]:
                    place = place[key]
                place[path[-1]] = draw.choice(wrong)
                fake.answers[f"tasks/{TASK}/rounds/1/report"] = {"body": changed}
                market = Market(fake.url)
                for read in (market.rounds, market.scores, market.statements, market.totals):
                    try:
                        read(TASK)
                    except FlorinError as error:
                        self.assertIn(error.code, ("INVALID_RESPONSE", "UNEXPECTED_CONTENT"))
                    tried += 1
        self.assertGreater(tried, 300)

    def test_too_many_rounds_are_refused(self):
        with FakeMarket({f"tasks/{TASK}": view(reported=10**9)}) as fake:
            self.refused("INVALID_RESPONSE", lambda: Market(fake.url).rounds(TASK))


def paths_of(value, path=()):
    """The path of each value inside a JSON value."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from paths_of(item, (*path, key))


def model_file(change=None, cut=0):
    """The canonical file of the softmax model of `fake_market.view`."""
    weight, bias = np.arange(6, dtype="<f4"), np.array([7, 8, 9], dtype="<f4")
    header = {
        "layer0.weight": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]},
        "layer0.bias": {"dtype": "F32", "shape": [3], "data_offsets": [24, 36]},
    }
    text = json.dumps(change(header) if change else header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text + weight.tobytes() + bias.tobytes()
    return whole[: len(whole) - cut]


class Models(Refusals):
    def served(self, data, digest=None, **more):
        digest = digest or blake3(data).hexdigest()
        return FakeMarket({f"tasks/{TASK}": view(model=digest, **more), f"blobs/{digest}": data})

    def test_parameters_have_their_names_and_shapes(self):
        with self.served(model_file()) as fake:
            found = Market(fake.url).model(TASK)
        self.assertEqual(list(found), ["layer0.weight", "layer0.bias"])
        np.testing.assert_array_equal(found["layer0.weight"], [[0, 1], [2, 3], [4, 5]])
        found["layer0.bias"][0] = 1.0  # arrays can be trained further

    def test_other_bytes_than_the_digest_are_refused(self):
        data = bytearray(model_file())
        digest = blake3(bytes(data)).hexdigest()
        data[-1] ^= 1
        with self.served(bytes(data), digest) as fake:
            self.assertIn(digest, str(self.refused("WRONG_DIGEST", lambda: Market(fake.url).model(TASK))))
        with self.served(bytes(data[:-4]), digest) as fake:
            self.refused("WRONG_DIGEST", lambda: Market(fake.url).model(TASK))

    def test_bytes_that_are_no_model_of_the_task_are_refused(self):
        moved = lambda header: {**header, "layer0.bias": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}
        renamed = lambda header: {name.replace("0", "1"): tensor for name, tensor in header.items()}
        for data in (b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x03" + bytes(7) + b"xxx", model_file(moved),
                     model_file(renamed), model_file(cut=4), model_file() + b"\0"):  # fmt: skip
            with self.served(data) as fake:
                self.refused("INVALID_MODEL", lambda: Market(fake.url).model(TASK))

    def test_a_model_longer_than_its_task_states_is_not_read(self):
        with self.served(bytes(4 << 20)) as fake:
            self.refused("INVALID_RESPONSE", lambda: Market(fake.url).model(TASK))

    def test_shapes_follow_from_each_kind_of_model(self):
        from florin.fields import Fields
        from florin.parameters import tensors_of

        shapes = lambda model: tensors_of(Fields({"model": model}, "spec"))
        mlp = shapes({"kind": "mlp", "inputs": 4, "hidden": [8, 6], "classes": 3})
        self.assertEqual(mlp["layer1.weight"], (6, 8))
        image = {"channels": 1, "height": 9, "width": 8}
        cnn = shapes({"kind": "cnn", **image, "filters": [4, 5], "hidden": 6, "classes": 3})
        self.assertEqual((cnn["layer1.weight"], cnn["layer2.weight"]), ((5, 4, 3, 3), (6, 20)))
        tensors = [{"name": "head.weight", "shape": [2, 3]}, {"name": "t", "shape": []}]
        graph = shapes({"kind": "graph", "tensors": tensors})
        self.assertEqual(graph, {"head.weight": (2, 3), "t": ()})
        huge = [{"name": str(at), "shape": [10**9]} for at in range(3)]
        for bad in ({"kind": "tree"}, {"kind": "graph", "tensors": huge},
                    {"kind": "softmax", "inputs": 0, "classes": 2},
                    {"kind": "mlp", "inputs": 1, "hidden": [True], "classes": 2},
                    {"kind": "graph", "tensors": [{"name": "a", "shape": [1]}] * 2},
                    {"kind": "graph", "tensors": [{"name": "a", "shape": [1] * 9}]}):  # fmt: skip
            self.refused("INVALID_RESPONSE", lambda: shapes(bad))

    def test_load_needs_torch_and_names_what_does_not(self):
        with self.served(model_file()) as fake, mock.patch.dict(sys.modules, {"torch": None}):
            error = self.refused("TORCH_MISSING", lambda: florin.load(TASK, fake.url))
            self.assertIn("Market.model", error.remedy)


if __name__ == "__main__":
    unittest.main()
