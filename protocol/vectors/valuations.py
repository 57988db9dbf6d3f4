"""Recomputes a round from its bytes, as docs/protocol.md states it: the decoded updates, weights, norm scaling, scores with
their errors, the aggregated model to its digest, and the metrics. Softmax regression, in Python's floats (binary64). It
has no Florin code. `check.py` runs it."""

import json
import math
import struct

from blake3 import blake3
from rounds import MICRO, NANO, is_excluded, is_resolved, micro, same

# Nano-nats that may differ, because `exp` and `ln` differ in the last bit between programs.
TOLERANCE = 10
# Gauss–Legendre with three nodes on [0, 1].
NODES = [(0.5 - math.sqrt(0.15), 5 / 18), (0.5, 4 / 9), (0.5 + math.sqrt(0.15), 5 / 18)]


def f32(x):
    """The nearest binary32 number, ties to even."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def nano(nats):
    """Nano-nats, half to even."""
    return round(nats * NANO)


def near(what, ours, theirs):
    assert abs(ours - theirs) <= TOLERANCE, f"{what}: ours {ours}, theirs {theirs}"


# --- bytes ---


def tensors(raw):
    """The tensors of a safetensors file, in its order: name, type and bytes."""
    (length,) = struct.unpack_from("<Q", raw)
    header, body = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        yield name, entry["dtype"], body[begin:end]


def floats(raw):
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def decode(kind, raw, size):
    """An update's numbers."""
    parts = list(tensors(raw))
    if kind == "f32":
        return [x for _, _, body in parts for x in floats(body)]
    if kind == "bf16":
        return [x for _, _, body in parts for i in range(0, len(body), 2) for x in floats(b"\0\0" + body[i : i + 2])]
    if kind == "int8":
        scales = {name.removesuffix(".scale"): floats(body)[0] for name, dtype, body in parts if dtype == "F32"}
        whole = [(scales[name], x) for name, dtype, body in parts if dtype == "I8" for x in struct.unpack(f"<{len(body)}b", body)]
        return [f32(scale * x) for scale, x in whole]
    (_, _, indices), (_, _, values) = parts
    decoded = [0.0] * size
    for at, value in zip(struct.unpack(f"<{len(indices) // 4}I", indices), floats(values), strict=True):
        decoded[at] = value
    return decoded


# --- preprocessing ---


def lower_median(numbers):
    return sorted(numbers)[(len(numbers) - 1) // 2]


def cap_weights(cap, rows, updates):
    rows = [r if any(update) else 0 for r, update in zip(rows, updates)]
    counted = [r for r in rows if r]
    most = cap * lower_median(counted) if cap and counted else max(rows, default=0)
    return [min(r, most) for r in rows]


def norm(vector):
    return math.sqrt(sum(x * x for x in vector))


def norm_factors(weights, updates):
    norms = [norm(update) for update in updates]
    moved = sorted((n, w) for n, w in zip(norms, weights) if n > 0 and w > 0)
    if not moved:
        return [MICRO] * len(updates)
    total, reached = sum(w for _, w in moved), 0
    for median, weight in moved:
        reached += weight
        if 2 * reached >= total:
            break
    return [MICRO if n == 0 else math.floor(min(median / n, 2.0) * 1e6) for n in norms]


# --- the game ---


class Game:
    """Losses of softmax regression on the round's rows. Parameters are weights [out, in] and biases."""

    def __init__(self, base, updates, rows, classes):
        self.base, self.updates, self.classes = base, updates, classes
        width = len(rows[0]) // 4 - 1
        self.rows = [(list(struct.unpack(f"<{width}f", r[:-4])), struct.unpack("<I", r[-4:])[0]) for r in rows]
        self.width, self.epsilon = width, 1 / classes**2

    def point(self, coefficients):
        moved = [list(self.base)] + [[c * x for x in u] for c, u in zip(coefficients, self.updates) if c]
        return [sum(numbers) for numbers in zip(*moved)]

    def probabilities(self, parameters, x):
        biases = parameters[self.width * self.classes :]
        weights = [parameters[k * self.width : (k + 1) * self.width] for k in range(self.classes)]
        logits = [b + sum(w * v for w, v in zip(own, x)) for own, b in zip(weights, biases)]
        powers = [math.exp(z - max(logits)) for z in logits]
        return [p / sum(powers) for p in powers]

    def losses(self, parameters):
        own = [self.probabilities(parameters, x)[label] for x, label in self.rows]
        return [-math.log((1 - self.epsilon) * p + self.epsilon) for p in own]

    def gradients(self, parameters):
        """The gradient of each row's bounded loss."""
        for x, label in self.rows:
            p = self.probabilities(parameters, x)
            q = p[label]
            outer = -(1 - self.epsilon) * q / ((1 - self.epsilon) * q + self.epsilon)
            logits = [outer * ((k == label) - p[k]) for k in range(self.classes)]
            yield [d * v for d in logits for v in x] + logits

    def correct(self, parameters):
        hits = 0
        for x, label in self.rows:
            p = self.probabilities(parameters, x)
            hits += p.index(max(p)) == label
        return hits


def mean(numbers):
    return sum(numbers) / len(numbers)


def standard_error(values):
    middle = mean(values)
    return math.sqrt(sum((x - middle) ** 2 for x in values) / (len(values) - 1) / len(values))


def stage(game, weights, members):
    """Scores, errors and derivatives of the members, and the improvement."""
    total = sum(weights[i] for i in members)
    shares = [weights[i] / total if i in members else 0.0 for i in range(len(weights))]
    rows = {i: [0.0] * len(game.rows) for i in members}
    slopes = {i: [] for i in members}
    for t, omega in NODES:
        gradients = list(game.gradients(game.point([t * p for p in shares])))
        for i in members:
            along = [-shares[i] * sum(g * d for g, d in zip(gradient, game.updates[i])) for gradient in gradients]
            slopes[i].append(mean(along))
            rows[i] = [sum_ + omega * value for sum_, value in zip(rows[i], along)]
    half = list(game.gradients(game.point([0.5 * p for p in shares])))
    whole = norm([mean(column) for column in zip(*half)])
    null = {i: shares[i] * norm(game.updates[i]) * whole / math.sqrt(len(game.base)) for i in members}
    before, after = mean(game.losses(game.base)), mean(game.losses(game.point(shares)))
    return {
        "scores": {i: nano(mean(rows[i])) for i in members},
        "errors": {i: nano(math.sqrt(standard_error(rows[i]) ** 2 + null[i] ** 2)) for i in members},
        "derivatives": {i: [nano(s) for s in slopes[i]] for i in members},
        "before": nano(before), "after": nano(after), "total": nano(before) - nano(after),
    }


# --- aggregation ---


def middle(values):
    values, half = sorted(values), len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def weighted_mean(updates, factors, weights):
    total = float(sum(weights))
    numbers = [float(w) * f for w, f in zip(weights, factors)]
    return [f32(sum((n * x for n, x in zip(numbers, column)), 0.0) / total) for column in zip(*updates)]


def aggregate(rule, weights, updates):
    """The step of a rule; updates without weight take no part."""
    held = [(w, u) for w, u in zip(weights, updates) if w]
    weights, updates = [w for w, _ in held], [u for _, u in held]
    kind, count = rule["rule"], len(updates)
    if kind == "krum" and count < 2 * rule["byzantine"] + 3:
        kind = "median"
    if kind == "median":
        return [f32(middle(column)) for column in zip(*updates)]
    if kind == "trimmed_mean":
        cut = count * (micro(rule["trim"]) // 1000) // 1000
        parts = [sorted(column)[cut : count - cut] for column in zip(*updates)]
        return [f32(sum(part, 0.0) / len(part)) for part in parts]
    if kind == "krum":
        def score(at):
            others = (u for i, u in enumerate(updates) if i != at)
            distances = sorted(sum((x - y) ** 2 for x, y in zip(updates[at], u)) for u in others)
            return sum(distances[: count - rule["byzantine"] - 2])
        return updates[min(range(count), key=lambda at: (score(at), at))]
    factors = [1.0] * count
    if kind == "clipped_mean":
        norms = [norm(u) for u in updates]
        factors = [min(1.0, middle(norms) / n) if n else 1.0 for n in norms]
    return weighted_mean(updates, factors, weights)


# --- a round ---


def check_valuation_of_bytes(v):
    rows, result = [bytes.fromhex(r) for r in v["rows"]], v["result"]
    base = decode("f32", bytes.fromhex(v["base"]), 0)
    updates = [decode(v["format"]["kind"], bytes.fromhex(e["update"]), len(base)) for e in v["entries"]]
    rules, valuation = v["preprocessing"], result["valuation"]
    weights = cap_weights(rules["weight_cap"], [e["rows_counted"] for e in v["entries"]], updates)
    scaled = rules["norm_scaling"] == "median"
    factors = norm_factors(weights, updates) if scaled else [MICRO] * len(updates)
    updates = [u if f == MICRO else [f32(x * (f / 1e6)) for x in u] for f, u in zip(factors, updates)]
    own = [score["preprocessing"] for score in valuation["scores"]]
    same("weights", weights, [each["weight"] for each in own])
    same("norm factors", factors, [micro(each["norm_factor"]) for each in own])

    game, everyone = Game(base, updates, rows, v["classes"]), list(range(len(updates)))
    first = stage(game, weights, everyone)
    z = micro(v["confidence_z"])
    excluded = [i for i in everyone if is_excluded(z, {"score_nano": first["scores"][i], "error_nano": first["errors"][i]})]
    same("excluded", [i in excluded for i in everyone], [score["excluded"] for score in valuation["scores"]])
    members = [i for i in everyone if i not in excluded]
    stages = [first] + ([stage(game, weights, members)] if excluded else [])
    last = stages[-1]
    for i, score in enumerate(valuation["scores"]):
        of = first if i in excluded else last
        near(f"score {i}", of["scores"][i], score["score_nano"])
        near(f"error {i}", of["errors"][i], score["error_nano"])
        for ours, theirs in zip(of["derivatives"][i], valuation["evidence"]["derivatives_nano"][i], strict=True):
            near(f"derivative {i}", ours, theirs)
    same("number of stages", len(stages), len(valuation["stages"]))
    for ours, theirs in zip(stages, valuation["stages"]):
        near("total of a stage", ours["total"], theirs["total_nano"])
        gap = ours["total"] - sum(ours["scores"].values())
        assert is_resolved(ours["total"], gap), "a stage that three nodes do not resolve"
        near("gap", gap, theirs["gap_nano"])
        same("units of a stage", (3 + 1) + 1, theirs["units"])
    same("units", 1 + 5 * len(stages), valuation["units"])
    near("loss before", last["before"], valuation["loss_before_nano"])
    near("loss after", last["after"], valuation["loss_after_nano"])

    step = aggregate(v["aggregation"], [weights[i] for i in members], [updates[i] for i in members])
    after = [f32(b + s) for b, s in zip(base, step)]
    model = bytes.fromhex(v["model"])
    same("parameters", after, decode("f32", model, 0))
    raw = bytes.fromhex(v["base"])
    body = len(raw) - 4 * len(base)
    same("model's bytes", raw[:body] + struct.pack(f"<{len(after)}f", *after), model)
    same("model", blake3(model).hexdigest(), result["model"])
    metrics = result["metrics"]
    near("loss of the model", nano(mean(game.losses(after))), valuation["model_loss_nano"])
    near("metrics", nano(mean(game.losses(after))), metrics["loss_after_nano"])
    same("correct", (game.correct(base), game.correct(after)), (metrics["correct_before"], metrics["correct_after"]))
