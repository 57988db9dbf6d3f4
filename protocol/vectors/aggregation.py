"""The aggregation of a round's updates, bit for bit: sums in binary64, one rounding to binary32."""

import struct
from math import sqrt


def round32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def norm(values):
    """The L2 norm: squares over eight interleaved lanes, then over the lanes."""
    lanes = [0.0] * 8
    for at, x in enumerate(values):
        lanes[at % 8] += x * x
    return sqrt(in_order(lanes))


def in_order(values):
    """A plain sum: from version 3.12 on, Python's `sum` compensates rounding errors."""
    total = 0.0
    for value in values:
        total += value
    return total


def mean(weighted, total):
    """Each is (weight, delta)."""
    sums = [0.0] * len(weighted[0][1])
    for weight, delta in weighted:
        sums = [x + weight * step for x, step in zip(sums, delta)]
    return [round32(x / total) for x in sums]


def median(values):
    values, middle = sorted(values), len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def squared_distance(a, b):
    """Over four interleaved lanes in blocks of 1,024 coordinates."""
    total = 0.0
    for start in range(0, len(a), 1024):
        lanes = [0.0] * 4
        for at, (x, y) in enumerate(zip(a[start : start + 1024], b[start : start + 1024])):
            lanes[at % 4] += (x - y) * (x - y)
        total += (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    return total


def nearest(deltas, byzantine):
    """The update that Krum selects."""
    scores = []
    for i, own in enumerate(deltas):
        distances = sorted(squared_distance(own, other) for k, other in enumerate(deltas) if k != i)
        scores.append(in_order(distances[: len(deltas) - byzantine - 2]))
    return deltas[scores.index(min(scores))]


def step_of(rule, counted):
    deltas = [delta for _, delta in counted]
    total = float(sum(weight for weight, _ in counted))
    if rule["rule"] == "krum" and len(deltas) >= 2 * rule["byzantine"] + 3:
        return nearest(deltas, rule["byzantine"])
    if rule["rule"] in ("median", "krum"):
        return [round32(median(column)) for column in zip(*deltas)]
    if rule["rule"] == "trimmed_mean":
        whole, _, part = rule["trim"].partition(".")
        cut = len(deltas) * int(whole + part.ljust(3, "0")[:3]) // 1000
        columns = (sorted(column)[cut : len(deltas) - cut] for column in zip(*deltas))
        return [round32(in_order(column) / len(column)) for column in columns]
    weighted = [(float(weight), delta) for weight, delta in counted]
    if rule["rule"] == "clipped_mean":
        norms = [norm(delta) for delta in deltas]
        middle = median(norms)
        shrunk = [middle / x if x > middle else 1.0 for x in norms]
        weighted = [(weight * by, delta) for (weight, delta), by in zip(weighted, shrunk)]
    return mean(weighted, total)


def aggregated(round, included):
    """The parameters after the aggregation of the updates at these positions."""
    counted = [(round.weights[i], round.deltas[i]) for i in included if round.weights[i]]
    if not counted:
        return round.base
    step = step_of(round.task["rounds"]["aggregation"], counted)
    return [round32(x + y) for x, y in zip(round.base, step)]
