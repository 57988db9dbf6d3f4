"""Flower's simulation of the workload of `florin-bench sim`, with a NumPy client, the fastest for so small a model.

Prints one JSON object per line: name, value, unit. Usage: flower_sim.py FOLDER ROUNDS, with flwr, ray and NumPy on
PYTHONPATH; FOLDER contains the workloads that `florin-bench sim` wrote: w-1.json, … and s.json.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

# Each accuracy needs its own run; a run takes seconds to start and at least 0.1 s per round.
WORKER = '''
import json
import resource
import sys
import time

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

path, rounds, cohort, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
work = json.load(open(path))
rows = np.array(work["rows"], dtype=np.float32)
labels = np.array(work["labels"])
clients, batch, rate = work["clients"], work["batch"], np.float32(work["learning_rate"])


def start():
    numbers, parts, at = np.array(work["initial_params"], dtype=np.float32), [], 0
    for shape in [(128, 64), (128,), (10, 128), (10,)]:
        size = int(np.prod(shape))
        parts.append(numbers[at : at + size].reshape(shape).copy())
        at += size
    return parts


def train(parts, x, y, rng):
    a, b, c, d = (part.copy() for part in parts)
    order = rng.permutation(len(y))
    for begin in range(0, len(y), batch):
        own = order[begin : begin + batch]
        x1, one = x[own], np.arange(len(own))
        hidden = np.maximum(x1 @ a.T + b, 0)
        logits = hidden @ c.T + d
        logits -= logits.max(axis=1, keepdims=True)
        pulls = np.exp(logits)
        pulls /= pulls.sum(axis=1, keepdims=True)
        pulls[one, y[own]] -= 1
        pulls /= np.float32(len(own))
        back = (pulls @ c) * (hidden > 0)
        c -= rate * (pulls.T @ hidden)
        d -= rate * pulls.sum(axis=0)
        a -= rate * (back.T @ x1)
        b -= rate * back.sum(axis=0)
    return [a, b, c, d]


class Client(NumPyClient):
    def __init__(self, at):
        self.own = np.array(clients[at])

    def fit(self, parameters, config):
        rng = np.random.default_rng(abs(hash((seed, int(self.own[0]), config["round"]))))
        return train(parameters, rows[self.own], labels[self.own], rng), len(self.own), {}


times, last = [], []


class Timed(FedAvg):
    def configure_fit(self, server_round, parameters, client_manager):
        times.append(time.perf_counter())
        last[:] = [parameters]
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        done = super().aggregate_fit(server_round, results, failures)
        last[:] = [done[0]]
        return done


def server(context):
    strategy = Timed(
        fraction_fit=cohort / len(clients),
        fraction_evaluate=0.0,
        min_fit_clients=cohort,
        min_available_clients=len(clients),
        initial_parameters=ndarrays_to_parameters(start()),
        on_fit_config_fn=lambda at: {"round": at},
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))


run_simulation(
    server_app=ServerApp(server_fn=server),
    client_app=ClientApp(client_fn=lambda c: Client(int(c.node_config["partition-id"])).to_client()),
    num_supernodes=len(clients),
    backend_config={"client_resources": {"num_cpus": 1}},
)
times.append(time.perf_counter())
a, b, c, d = parameters_to_ndarrays(last[0])
test_rows = work["test_rows"]
logits = np.maximum(rows[test_rows] @ a.T + b, 0) @ c.T + d
right = float((logits.argmax(axis=1) == labels[test_rows]).mean())
between = [n - p for p, n in zip(times, times[1:])]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
print("RESULT " + json.dumps({"times": between[:-1], "accuracy": right, "peak": peak}), flush=True)
'''


def play(folder, worker, name, rounds, cohort, seed):
    command = [sys.executable, str(worker), str(folder / name), str(rounds), str(cohort), str(seed)]
    environment = dict(os.environ, FLWR_TELEMETRY_ENABLED="0", FLWR_HOME=str(worker.parent), RAY_DEDUP_LOGS="0")
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[len("RESULT ") :])
    sys.exit(f"Flower printed no result ({done.returncode}): {done.stderr[-2000:]}")


def say(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def main():
    folder, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as own:
        worker = pathlib.Path(own, "worker.py")
        worker.write_text(WORKER)
        accuracies = []
        for seed, path in enumerate(sorted(folder.glob("w-*.json")), 1):
            one = play(folder, worker, path.name, rounds, 20, seed)
            accuracies.append(one["accuracy"])
        many = play(folder, worker, "s.json", 10, 200, 1)
    say("Flower: a round of 20 clients", 1e3 * statistics.median(one["times"][1:]), "ms")
    say("Flower: clients, 200 a round", 200 / statistics.median(many["times"][1:]), "1/s")
    say("Flower: most memory of its server's process", one["peak"], "MB")
    say(f"Flower: accuracy after {rounds} rounds, mean", statistics.mean(accuracies), "")
    say(f"Flower: accuracy after {rounds} rounds, standard deviation", statistics.stdev(accuracies), "")


main()
