"""The weighted mean of many large updates, in NumPy.

`florin-bench aggregate` compares its own implementation with this one: 100 updates of 10 million floats,
as a NumPy user would write it, and as a federated-learning server does it, adding one update after
another to an accumulator in place. Prints one JSON line per row.

Memory holds fewer arrays than updates, used in turn: each is larger than the CPU caches, so the memory
traffic is the same.

usage: PYTHONPATH=PACKAGES python3 aggregate.py [--updates N] [--floats N] [--distinct N] [--repeats N]
"""

import argparse
import json
import sys
import time

import numpy


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--floats", type=int, default=10_000_000, help="per update")
    parser.add_argument("--distinct", type=int, default=10, help="arrays held in memory")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest repeat counts")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def one_temporary(updates, shares):
    """Scale into one scratch array, and add that to the accumulator."""
    total = numpy.zeros_like(updates[0])
    scratch = numpy.empty_like(total)
    for update, share in zip(updates, shares):
        numpy.multiply(update, share, out=scratch)
        numpy.add(total, scratch, out=total)
    return total


def in_place(updates, shares):
    """Copy each update into its own array, as if received; scale it in place; add it."""
    total = None
    for update, share in zip(updates, shares):
        arrived = update.copy()
        numpy.multiply(arrived, share, out=arrived)
        if total is None:
            total = arrived
        else:
            numpy.add(total, arrived, out=total)
    return total


def main():
    options = arguments()
    if min(options.updates, options.floats, options.distinct, options.repeats) < 1:
        sys.exit("updates, floats, distinct and repeats must be at least 1")
    random = numpy.random.default_rng(options.seed)
    distinct = [
        random.standard_normal(options.floats, dtype=numpy.float32)
        for _ in range(min(options.distinct, options.updates))
    ]
    updates = [distinct[number % len(distinct)] for number in range(options.updates)]
    weights = random.integers(1, 1000, options.updates)
    shares = (weights / weights.sum()).astype(numpy.float32)

    ways = [
        (f"NumPy {numpy.__version__}, one temporary", one_temporary),
        (f"NumPy {numpy.__version__}, in place as a server does it", in_place),
    ]
    results = []
    for name, way in ways:
        times = []
        for _ in range(options.repeats):
            start = time.perf_counter()
            result = way(updates, shares)
            times.append(time.perf_counter() - start)
        results.append(result)
        print(json.dumps({"name": name, "value": min(times), "unit": "s"}), flush=True)
    if not numpy.allclose(results[0], results[1], rtol=1e-4, atol=1e-6):
        sys.exit("the two implementations disagree")


if __name__ == "__main__":
    main()
