"""pfl-research's simulation of the workload of `florin-bench sim`, in one process and in two.

Prints one JSON object per line: name, value, unit. Usage: pfl_sim.py FOLDER ROUNDS, with pfl, torch and NumPy on
PYTHONPATH; FOLDER contains the workloads that `florin-bench sim` wrote: w-1.json, … and s.json.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

WORKER = '''
import json
import resource
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

path, rounds, cohort, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
np.random.seed(seed)
torch.manual_seed(seed)
work = json.load(open(path))
rows = torch.tensor(work["rows"], dtype=torch.float32)
labels = torch.tensor(work["labels"], dtype=torch.int64)
users = {str(at): (rows[own], labels[own]) for at, own in enumerate(work["clients"])}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(64, 128), torch.nn.Linear(128, 10)
        start = torch.tensor(work["initial_params"], dtype=torch.float32)
        at = 0
        for own in (self.one.weight, self.one.bias, self.two.weight, self.two.bias):
            own.data = start[at : at + own.numel()].reshape(own.shape).clone()
            at += own.numel()

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))

    def loss(self, x, y, is_train=True):
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y):
        return {}


class Clock(TrainingProcessCallback):
    def __init__(self):
        self.at = []

    def on_train_begin(self, *, model):
        self.at.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.at.append(time.perf_counter())
        return False, Metrics()


def user(name):
    x, y = users[name]
    return Dataset(raw_data=[x, y], user_id=name)


net, clock = Net(), Clock()
model = PyTorchModel(
    net,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
)
weights = {name: len(y) for name, (x, y) in users.items()}
data = FederatedDataset(user, get_user_sampler("random", list(users)), user_id_to_weight=weights)
backend = SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByDatapoints()])
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=cohort,
        val_cohort_size=0,
    ),
    backend=backend,
    model=model,
    model_train_params=NNTrainHyperParams(
        local_num_epochs=1,
        local_learning_rate=work["learning_rate"],
        local_batch_size=work["batch"],
    ),
    callbacks=[clock],
)
if pytorch_ops.distributed.global_rank == 0:
    test_rows = work["test_rows"]
    with torch.no_grad():
        right = (net(rows[test_rows]).argmax(dim=1) == labels[test_rows]).float().mean().item()
    times = [b - a for a, b in zip(clock.at, clock.at[1:])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print("RESULT " + json.dumps({"times": times, "accuracy": right, "peak": peak}), flush=True)
'''


def play(folder, worker, name, rounds, cohort, seed, processes):
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command += [str(worker), str(folder / name), str(rounds), str(cohort), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[len("RESULT ") :])
    sys.exit(f"pfl printed no result ({done.returncode}): {done.stderr[-2000:]}")


def say(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def main():
    folder, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as own:
        worker = pathlib.Path(own, "worker.py")
        worker.write_text(WORKER)
        accuracies = []
        for seed, path in enumerate(sorted(folder.glob("w-*.json")), 1):
            one = play(folder, worker, path.name, rounds, 20, seed, 1)
            accuracies.append(one["accuracy"])
        two = play(folder, worker, "w-1.json", rounds, 20, 1, 2)
        many = play(folder, worker, "s.json", 20, 200, 1, 2)
    fast = min(statistics.median(run["times"][1:]) for run in (one, two))
    say("pfl-research: a round of 20 clients, 1 process", 1e3 * statistics.median(one["times"][1:]), "ms")
    say("pfl-research: a round of 20 clients, the faster of 1 and 2 processes", 1e3 * fast, "ms")
    say("pfl-research: clients, 200 a round, 2 processes", 200 / statistics.median(many["times"][1:]), "1/s")
    say("pfl-research: most memory of one process", one["peak"], "MB")
    say(f"pfl-research: accuracy after {rounds} rounds, mean", statistics.mean(accuracies), "")
    say(f"pfl-research: accuracy after {rounds} rounds, standard deviation", statistics.stdev(accuracies), "")


main()
