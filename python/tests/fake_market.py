"""A coordinator for the tests: it answers each path with what a test put there."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TASK = "ab" * 32
ANN, BEN, PROVIDER = ("0x" + letter * 40 for letter in "aBc")


class FakeMarket:
    """`answers[path]` is the JSON of a path, or a function of the request handler."""

    def __init__(self, answers):
        market = self
        self.answers, self.asked = dict(answers), []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                market.asked.append(self.path)
                answer = market.answers.get(self.path.removeprefix("/v1/"))
                if answer is None:
                    send(self, 404, json.dumps({"code": "UNKNOWN_TASK", "message": "there is no such task"}).encode())
                elif callable(answer):
                    answer(self)
                else:
                    send(self, 200, answer if isinstance(answer, bytes) else json.dumps(answer).encode())

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()


def send(handler, status, body, headers=()):
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers:
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def view(reported=1, model="00" * 32, **more):
    spec = {"model": {"kind": "softmax", "inputs": 2, "classes": 3}}
    return {"id": TASK, "reported": reported, "model": model, "spec": spec, **more}


def report(number=1, **more):
    """A round of two updates: one paid, one excluded. Amounts have units below the precision of a float."""
    line = {"account": ANN, "increment": str(2**80), "payout": "1000000000.000000000000000001",
            "floor": "0.5", "debit": "0", "reason": "paid"}  # fmt: skip
    before = {"norm_factor": "1.25", "duplicate_of": None, "weight": 40}
    copied = {"norm_factor": "1", "duplicate_of": {"source": {"same_round": ANN}, "cosine": "0.999999"}, "weight": 0}
    entry = {"rows_declared": 50, "rows_counted": 40, "bond": "6"}
    totals = {"score_sum_nano": "-5", "variance_nano2": "1", "paid_score_nano": "7", "data": "1.5",
              "infrastructure": "0", "debited": "0.000000000000000001"}  # fmt: skip
    body = {
        "scope": {"task": TASK, "round": number},
        "outcome": "settled",
        "entries": [{"sender": ANN, **entry}, {"sender": BEN, **entry}],
        "missing": [["0x" + "d" * 40, {"rejected": "TOO_LARGE"}]],
        "valuation": {
            "loss_before_nano": 2_000_000_000, "total_nano": 2**53 + 1, "gap_nano": -3,
            "stages": [{"estimator": {"path": 3}}],
            "scores": [
                {"account": ANN, "score_nano": 2**53 + 1, "error_nano": 9, "excluded": False, "preprocessing": before},
                {"account": BEN, "score_nano": -8, "error_nano": 1, "excluded": True, "preprocessing": copied},
            ],
            "evidence": {"cross_check": {"scores_nano": [2**53 + 2]}},
        },
        "metrics": {"rows": 20, "correct_before": 3, "correct_after": 11, "loss_after_nano": 1_500_000_000},
        "pool": "100",
        "lines": [line, {**line, "account": BEN, "increment": "0", "payout": "0", "debit": "0.25",
                         "reason": "excluded"}],
        "infrastructure": [{"provider": PROVIDER, "units": 5, "amount": "0.5"}] * 2,
        "final_lines": [],
        "account_totals": {ANN: totals},
        "data_total": "1000000000.000000000000000001",
        "infrastructure_total": "1",
        "model": "00" * 32,
    }  # fmt: skip
    return {"body": {**body, **more}, "signature": "00"}
