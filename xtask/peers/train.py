"""One participant's training loop, in the style of PyTorch's documentation.

`florin-bench train` compares its own loop with this one on the same number of threads: a 64-128-10 MLP,
batches of 16, plain SGD with learning rate 0.1, cross-entropy. Prints one JSON line per row.

usage: PYTHONPATH=PACKAGES python3 train.py [--steps N] [--threads N] [--repeats N] [--seed N]
"""

import argparse
import json
import sys
import time

import torch

ROWS, FEATURES, HIDDEN, CLASSES, BATCH, RATE = 1797, 64, 128, 10, 16, 0.1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000, help="steps in one repeat")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5, help="the fastest repeat counts")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def batches(generator, features, labels):
    """Yields shuffled batches of BATCH rows without end; skips the incomplete batch of each epoch."""
    while True:
        order = torch.randperm(ROWS, generator=generator)
        for start in range(0, ROWS - BATCH + 1, BATCH):
            chosen = order[start:start + BATCH]
            yield features[chosen], labels[chosen]


def seconds(options):
    """Seconds that `steps` steps take, after a warm-up of a hundred steps."""
    generator = torch.Generator().manual_seed(options.seed)
    features = torch.rand((ROWS, FEATURES), generator=generator)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    torch.manual_seed(options.seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, CLASSES),
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    supply = batches(generator, features, labels)

    def step():
        x, y = next(supply)
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()

    for _ in range(100):
        step()
    start = time.perf_counter()
    for _ in range(options.steps):
        step()
    return time.perf_counter() - start


def main():
    options = arguments()
    if min(options.steps, options.threads, options.repeats) < 1:
        sys.exit("steps, threads and repeats must be at least 1")
    torch.set_num_threads(options.threads)
    best = min(seconds(options) for _ in range(options.repeats))
    name = f"PyTorch {torch.__version__.split('+')[0]}, plain loop"
    print(json.dumps({"name": name, "value": options.steps / best, "unit": "steps/s"}))


if __name__ == "__main__":
    main()
