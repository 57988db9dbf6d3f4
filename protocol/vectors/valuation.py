"""Recomputes whole rounds in miniature from bytes: models, updates and disclosed rows in, scores in nano-nats and the
digest of the next model out. It has no Florin code: docs/protocol.md is its only source. `check.py` runs it.

Preprocessing, weights, exclusions, void reasons, the baseline and the model's digest must be equal. Losses, scores,
standard errors, derivatives and coalition values may differ by 10 nano-nats, as between honest machines: `math.exp` and
`math.log` may differ from another library's in the last bit. Convolutional networks are not covered.
"""

import json
import struct
from base64 import b64decode
from itertools import combinations
from math import exp, fsum, log, pi, cos, sqrt

from blake3 import blake3

import cross_check
from aggregation import aggregated, norm, round32
from baseline import after_baseline
from draws import Stream
from duplicates import find_duplicates
from rounds import is_confirmed, is_excluded, is_resolved, micro, rungs, same

TOLERANCE, MICRO, GROUPS = 10, 10**6, 32
PERMUTATIONS = 0x726F7770
PERMUTED_MAX = 64


def gauss_legendre(count):
    """Nodes and weights on 0 to 1, by Newton's method on the Legendre polynomial."""
    rule = []
    for k in range(count, 0, -1):
        x = cos(pi * (k - 0.25) / (count + 0.5))
        for _ in range(50):
            before, value = 1.0, x
            for degree in range(2, count + 1):
                before, value = value, ((2 * degree - 1) * x * value - (degree - 1) * before) / degree
            slope = count * (x * value - before) / (x * x - 1)
            x -= value / slope
        rule.append(((1 + x) / 2, 1 / ((1 - x * x) * slope * slope)))
    return rule


NODES = {count: gauss_legendre(count) for count in (*range(1, 9), 12)}


def nano(nats):
    """Python rounds halves to even."""
    return round(nats * 1e9)


# --- bytes ---


def shapes(model):
    """The tensors of a model: names and shapes."""
    sizes = [model["inputs"], *model.get("hidden", []), model["classes"]]
    for at, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        yield f"layer{at}.weight", [outputs, inputs]
        yield f"layer{at}.bias", [outputs]


def size_of(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def header(tensors):
    """The canonical safetensors header of (name, type, shape)."""
    entries, at = {}, 0
    for name, kind, shape in tensors:
        end = at + size_of(shape) * {"F32": 4, "U32": 4, "BF16": 2, "I8": 1}[kind]
        entries[name], at = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}, end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def numbers(raw, tensors):
    """The numbers of each tensor of a canonical file."""
    head = header(tensors)
    assert raw.startswith(head), f"the header is not {head}"
    found, at = [], len(head)
    for _, kind, shape in tensors:
        count = size_of(shape)
        if kind == "BF16":
            parts = struct.unpack_from(f"<{count}H", raw, at)
            found.append(struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(x << 16 for x in parts))))
        else:
            found.append(struct.unpack_from(f"<{count}{ {'F32': 'f', 'U32': 'I', 'I8': 'b'}[kind] }", raw, at))
        at += count * {"F32": 4, "U32": 4, "BF16": 2, "I8": 1}[kind]
    assert at == len(raw), "bytes after the last tensor"
    return found


def model_file(model, params):
    tensors = [(name, "F32", shape) for name, shape in shapes(model)]
    return header(tensors) + struct.pack(f"<{len(params)}f", *params)


def decode_model(model, raw):
    return [x for part in numbers(raw, [(n, "F32", s) for n, s in shapes(model)]) for x in part]


def decode_update(task, raw):
    model, form = task["model"], task["rounds"]["format"]
    tensors, count = list(shapes(model)), sum(size_of(shape) for _, shape in shapes(model))
    if form["kind"] in ("f32", "bf16"):
        parts = numbers(raw, [(name, form["kind"].upper(), shape) for name, shape in tensors])
        return [x for part in parts for x in part]
    if form["kind"] == "int8":
        scales = [(name + ".scale", "F32", [1]) for name, _ in tensors]
        parts = numbers(raw, scales + [(name, "I8", shape) for name, shape in tensors])
        pairs = zip(parts[: len(scales)], parts[len(scales) :])
        return [round32(x * scale) for (scale,), part in pairs for x in part]
    kept = max(1, -(-count * form["permille"] // 1000))
    indices, values = numbers(raw, [("indices", "U32", [kept]), ("values", "F32", [kept])])
    delta = [0.0] * count
    for index, value in zip(indices, values):
        delta[index] = value
    return delta


def disclosed_rows(task, raw):
    """The rows of the round, each verified against the task's root: (features, label)."""
    def take(form):
        nonlocal at
        found = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return found[0]

    def key(context, *parts):
        return blake3(b"".join(parts), derive_key_context=f"florin v1 holdout {context}").digest()

    at, rows = 0, []
    for _ in range(take("I")):
        index, blind, row = take("I"), take("32s"), take(f"{take('I')}s")
        proof = [take("32s") for _ in range(take("I"))]
        node, place, left = key("row", struct.pack("<I", index), blind, row), index, task["holdout"]["rows"]
        while left > 1:
            if place ^ 1 < left:
                pair = (node, proof.pop(0)) if place % 2 == 0 else (proof.pop(0), node)
                node = key("node", *pair)
            place, left = place // 2, (left + 1) // 2
        assert not proof and node.hex() == task["holdout"]["root"], f"the proof of row {index} is wrong"
        *features, _ = struct.unpack(f"<{len(row) // 4}f", row)
        rows.append((features, struct.unpack("<I", row[-4:])[0]))
    assert at == len(raw)
    return rows


# --- the network ---


class Network:
    """Softmax regression or an MLP with ReLU, in binary64."""

    def __init__(self, model, rows):
        self.model, self.rows = model, rows
        self.floor = 1 / model["classes"] ** 2

    def layers(self, params):
        at = 0
        for name, shape in shapes(self.model):
            if name.endswith("bias"):
                yield weights, params[at : at + shape[0]]
            else:
                weights = [params[at + i * shape[1] : at + (i + 1) * shape[1]] for i in range(shape[0])]
            at += size_of(shape)

    def forward(self, params, features):
        """The inputs of each layer, and the logits."""
        inputs, x = [], features
        for weights, biases in self.layers(params):
            inputs.append(x)
            logits = [b + sum(w * v for w, v in zip(row, x)) for row, b in zip(weights, biases)]
            x = [max(v, 0.0) for v in logits]
        return inputs, logits

    def evaluate(self, params, features, label):
        """The bounded loss of a row, its derivative by each logit, and the inputs of the layers."""
        inputs, logits = self.forward(params, features)
        top = max(logits)
        parts = [exp(x - top) for x in logits]
        shares = [part / sum(parts) for part in parts]
        share = (1 - self.floor) * shares[label]
        pulls = [x - (k == label) for k, x in enumerate(shares)]
        bounded = share + self.floor
        return -log(bounded), [share / bounded * pull for pull in pulls], inputs

    def losses(self, params):
        return [self.evaluate(params, *row)[0] for row in self.rows]

    def correct(self, params):
        hits = 0
        for features, label in self.rows:
            logits = self.forward(params, features)[1]
            hits += logits.index(max(logits)) == label
        return hits

    def row_gradient(self, params, features, label):
        _, pulls, inputs = self.evaluate(params, features, label)
        parts = []
        for (weights, _), x in reversed(list(zip(self.layers(params), inputs))):
            parts.append([pull * v for pull in pulls for v in x] + pulls)
            back = [sum(pull * row[i] for pull, row in zip(pulls, weights)) for i in range(len(x))]
            # The derivative of a ReLU is 0 where its output is 0.
            pulls = [b if v > 0 else 0.0 for b, v in zip(back, x)]
        return [x for part in reversed(parts) for x in part]


# --- the valuation ---


def standard_error(values):
    count, centre = len(values), sum(values) / len(values)
    return sqrt(sum((x - centre) ** 2 for x in values) / (count - 1) / count)


class Game:
    """The game of a stage: members (positions of entries) with fixed shares."""

    def __init__(self, round, members):
        self.round, self.members = round, members
        total = sum(round.weights[i] for i in members)
        self.shares = [round.weights[i] / total for i in members]

    def params(self, scales):
        params = list(self.round.base)
        for i, share, scale in zip(self.members, self.shares, scales):
            if share * scale:
                params = [x + scale * share * step for x, step in zip(params, self.round.deltas[i])]
        return params

    def losses(self, scales):
        return self.round.grouped(self.round.network.losses(self.params(scales)))

    def worths(self, coalition):
        """The value of a coalition on each row, or group of rows."""
        after = self.losses([float(k in coalition) for k in range(len(self.members))])
        return [a - b for a, b in zip(self.round.before, after)]

    def path(self, nodes):
        count, rows = len(self.members), len(self.round.before)
        sums, slopes = [[0.0] * rows for _ in range(count)], [[] for _ in range(count)]
        for t, weight in NODES[nodes]:
            params = self.params([t] * count)
            gradients = [self.round.network.row_gradient(params, *row) for row in self.round.network.rows]
            for k, (i, share) in enumerate(zip(self.members, self.shares)):
                along = [-share * fsum(g * d for g, d in zip(gradient, self.round.deltas[i])) for gradient in gradients]
                along = self.round.grouped(along)
                slopes[k].append(sum(along) / rows)
                sums[k] = [x + weight * y for x, y in zip(sums[k], along)]
        return [(values, 0.0, own) for values, own in zip(sums, slopes)]

    def shapley(self):
        count, rows = len(self.members), len(self.round.before)
        worth = {c: self.worths(c) for size in range(count + 1) for c in map(frozenset, combinations(range(count), size))}
        found = []
        for k in range(count):
            values = [0.0] * rows
            for coalition in worth:
                if k not in coalition:
                    share = 1 / (count * ways(count - 1, len(coalition)))
                    pairs = zip(worth[coalition | {k}], worth[coalition])
                    values = [x + share * (a - b) for x, (a, b) in zip(values, pairs)]
            found.append((values, 0.0, []))
        return found

    def permutations(self, pairs):
        count, rows = len(self.members), len(self.round.before)
        draw, known = Stream(self.round.seed, PERMUTATIONS), {}
        sums, of_pairs = [[0.0] * rows for _ in range(count)], [[] for _ in range(count)]
        for _ in range(pairs):
            order, of_pair = draw.permutation(count), [0.0] * count
            for walk in (order, order[::-1]):
                coalition, before = frozenset(), [0.0] * rows
                for k in walk:
                    coalition |= {k}
                    if coalition not in known:
                        known[coalition] = self.worths(coalition)
                    gains = [a - b for a, b in zip(known[coalition], before)]
                    sums[k] = [x + gain for x, gain in zip(sums[k], gains)]
                    of_pair[k] += sum(gains) / rows / 2
                    before = known[coalition]
            for k in range(count):
                of_pairs[k].append(of_pair[k])
        return [([x / (2 * pairs) for x in sums[k]], standard_error(of_pairs[k]), []) for k in range(count)]

    def estimate(self, estimator):
        if estimator == "shapley":
            return self.shapley()
        [(kind, count)] = estimator.items()
        return self.path(count) if kind == "path" else self.permutations(count)

    def null_deviations(self):
        round = self.round
        params = self.params([0.5] * len(self.members))
        gradients = [round.network.row_gradient(params, *row) for row in round.network.rows]
        mean = [sum(column) / len(gradients) for column in zip(*gradients)]
        typical = sqrt(sum(x * x for x in mean) / len(mean))
        return [share * norm(round.deltas[i]) * typical for i, share in zip(self.members, self.shares)]


def ways(n, k):
    found = 1
    for step in range(k):
        found = found * (n - step) // (step + 1)
    return found


class Round:
    """A round's inputs, decoded and preprocessed, and the valuation of its stages."""

    def __init__(self, v):
        self.task, self.entries = v["task"], v["entries"]
        model, rules = self.task["model"], self.task["rounds"]["preprocessing"]
        base, shown = b64decode(v["base_model"]), b64decode(v["disclosed_rows"])
        self.base = decode_model(model, base)
        self.network = Network(model, disclosed_rows(self.task, shown))
        raw = blake3(base).digest() + blake3(shown).digest()
        digest = blake3(raw, derive_key_context="florin v1 check").digest()
        self.seed = int.from_bytes(digest[:8], "little")
        self.deltas = [decode_update(self.task, b64decode(raw)) for raw in v["updates"]]
        self.preprocess(v, model, rules)
        self.before = self.grouped(self.network.losses(self.base))
        self.stages, self.units, self.check = [], 1, None
        self.scores = [(0, 0, []) for _ in self.entries]

    def grouped(self, values):
        """The values per row; with more than 64 updates, sums per group, scaled to the same mean."""
        if len(self.deltas) <= PERMUTED_MAX:
            return values
        rows, groups = len(values), min(GROUPS, len(values))
        cuts = [rows * group // groups for group in range(groups + 1)]
        return [sum(values[a:b]) * groups / rows for a, b in zip(cuts, cuts[1:])]

    def preprocess(self, v, model, rules):
        rows = [entry["rows_counted"] for entry in self.entries]
        self.duplicates = [None] * len(rows)
        if rules["near_duplicates"] == "reject":
            models = [self.base, *(decode_model(model, b64decode(raw)) for raw in v["previous_models"])]
            steps = [[round32(a - b) for a, b in zip(*pair)] for pair in zip(models, models[1:])]
            earlier = [(by, decode_update(self.task, b64decode(raw))) for by, raw in v["earlier_updates"]]
            self.duplicates = find_duplicates(self.entries, self.deltas, steps, earlier)
        for i, found in enumerate(self.duplicates):
            if found:
                self.deltas[i] = [0.0] * len(self.base)
            if not any(self.deltas[i]):
                rows[i] = 0
        positive = sorted(x for x in rows if x)
        if rules["weight_cap"] and positive:
            cap = rules["weight_cap"] * positive[(len(positive) - 1) // 2]
            rows = [min(x, cap) for x in rows]
        self.weights, self.factors = rows, [MICRO] * len(rows)
        norms = [norm(delta) for delta in self.deltas]
        ordered = sorted((x, w) for x, w in zip(norms, rows) if x > 0 and w)
        if rules["norm_scaling"] == "median" and ordered:
            median = next(x for k, (x, _) in enumerate(ordered) if 2 * sum(w for _, w in ordered[: k + 1]) >= sum(rows))
            for i, x in enumerate(norms):
                if x > 0:
                    self.factors[i] = int(min(median / x, 2.0) * 1e6)
                    factor = self.factors[i] / 1e6
                    if self.factors[i] != MICRO:
                        self.deltas[i] = [round32(step * factor) for step in self.deltas[i]]

    def stage(self, members, with_gap=True):
        """Values members on the first rung that resolves them; returns whether one does."""
        game, passes = Game(self, members), 1
        ladder = rungs(self.task["estimator"]["nodes"], len(members))
        nulls, before = game.null_deviations(), nano(sum(self.before) / len(self.before))
        after = game.losses([1.0] * len(members))
        total = before - nano(sum(after) / len(after))
        for estimator, cost in ladder:
            if not with_gap and "path" in estimator:
                continue
            passes, scores = passes + cost, []
            for (values, sampled, slopes), null in zip(game.estimate(estimator), nulls):
                error = sqrt(standard_error(values) ** 2 + null * null + sampled * sampled)
                scores.append((nano(sum(values) / len(values)), nano(error), [nano(x) for x in slopes]))
            gap = total - sum(score for score, *_ in scores)
            if is_resolved(total, gap):
                break
        for i, score in zip(members, scores):
            self.scores[i] = score
        self.after, self.total, self.gap = before - total, total, gap
        self.stages.append({"estimator": estimator, "total_nano": total, "gap_nano": gap, "units": passes})
        self.units += passes
        return is_resolved(total, gap)

    def exclude(self, members):
        """The members that remain after the scores of a first stage."""
        z = micro(self.task["budget"]["confidence_z"])
        keys = ("score_nano", "error_nano")
        return [i for i in members if not is_excluded(z, dict(zip(keys, self.scores[i])))]

    def first_stages(self, with_gap=True):
        every = list(range(len(self.entries)))
        resolved, remaining = self.stage(every, with_gap), every
        if resolved:
            remaining = self.exclude(every)
            if not any(self.weights[i] for i in remaining):
                self.after, self.total = nano(sum(self.before) / len(self.before)), 0
                self.gap = -sum(self.scores[i][0] for i in remaining)
            elif len(remaining) < len(every):
                resolved = self.stage(remaining, with_gap)
        return resolved, remaining

    def value(self):
        if not any(self.weights):
            self.after = nano(sum(self.before) / len(self.before))
            self.total = self.gap = 0
            return True, list(range(len(self.entries)))
        resolved, remaining = self.first_stages()
        if resolved and "path" in self.stages[-1]["estimator"] and len(remaining) <= PERMUTED_MAX:
            self.cross_check(remaining)
            if self.check and not self.confirmed(remaining):
                if len(self.stages) == 2:
                    resolved = self.stage(remaining, with_gap=False)
                else:
                    checked = remaining
                    resolved, remaining = self.first_stages(with_gap=False)
                    if remaining != checked:
                        self.cross_check(remaining)
                return resolved, remaining
        else:
            self.cross_check(remaining)
        return resolved, remaining

    def cross_check(self, members):
        pairs, count, self.check = self.task["estimator"]["cross_check_pairs"], len(members), None
        if not pairs or not 2 <= count <= PERMUTED_MAX or not any(self.weights[i] for i in members):
            return
        game, table = Game(self, members), {frozenset(): 0}

        def worth(coalition):
            if coalition not in table:
                values = game.worths(coalition)
                table[coalition] = nano(sum(values) / len(values))
            return table[coalition] / 1e9

        scores = cross_check.scores(worth, self.seed, count, pairs)
        self.units += len(table)
        self.check = {
            "version": 1, "seed": self.seed, "passes": 2 + 2 * pairs * count,
            "table": {tuple(sorted(members[k] for k in each)): x for each, x in table.items()},
            "scores_nano": [nano(x) for x in scores],
        }

    def confirmed(self, members):
        for i, second in zip(members, self.check["scores_nano"], strict=True):
            score = {"score_nano": self.scores[i][0], "error_nano": self.scores[i][1]}
            if not is_confirmed(score, second, self.total):
                return False
        return True


# --- the check of a vector ---


def near(what, ours, theirs):
    assert abs(ours - theirs) <= TOLERANCE, f"{what}: ours {ours}, theirs {theirs}"


def check_stages(ours, theirs):
    same("estimators", [s["estimator"] for s in ours], [s["estimator"] for s in theirs])
    same("units of stages", [s["units"] for s in ours], [s["units"] for s in theirs])
    for a, b in zip(ours, theirs):
        near("total of a stage", a["total_nano"], b["total_nano"])
        near("gap of a stage", a["gap_nano"], b["gap_nano"])


def check_scores(round, remaining, stated):
    for i, (score, entry) in enumerate(zip(stated["scores"], round.entries, strict=True)):
        same("account", entry["sender"], score["account"])
        own = score["preprocessing"]
        same(f"weight {i}", round.weights[i], own["weight"])
        same(f"norm factor {i}", round.factors[i], micro(own["norm_factor"]))
        same(f"duplicate {i}", round.duplicates[i], own["duplicate_of"])
        same(f"excluded {i}", i not in remaining, score["excluded"])
        near(f"score {i}", round.scores[i][0], score["score_nano"])
        near(f"error {i}", round.scores[i][1], score["error_nano"])
        theirs = stated["evidence"]["derivatives_nano"][i]
        for a, b in zip(round.scores[i][2], theirs, strict=True):
            near(f"derivative {i}", a, b)


def check_cross_check(ours, theirs):
    if ours is None or theirs is None:
        return same("cross-check", ours, theirs)
    for name in ("version", "seed", "passes"):
        same(name, ours[name], theirs[name])
    same("coalitions", sorted(ours["table"]), sorted(tuple(each["members"]) for each in theirs["table"]))
    for each in theirs["table"]:
        near(f"value of {each['members']}", ours["table"][tuple(each["members"])], each["value_nano"])
    for a, b in zip(ours["scores_nano"], theirs["scores_nano"], strict=True):
        near("score of the cross-check", a, b)


def check_valuation_vector(v):
    round, result = Round(v), v["result"]
    resolved, remaining = round.value()
    stated = result["valuation"]
    check_stages(round.stages, stated["stages"])
    check_scores(round, remaining, stated)
    check_cross_check(round.check, stated["evidence"]["cross_check"])
    before = nano(sum(round.before) / len(round.before))
    near("loss before", before, stated["loss_before_nano"])
    near("loss after", round.after, stated["loss_after_nano"])
    near("total", round.total, stated["total_nano"])
    near("gap", round.gap, stated["gap_nano"])
    same("units", round.units, stated["units"])
    kept = [i for i in remaining if not round.duplicates[i]]
    params = aggregated(round, kept)
    loss = lambda params: nano(sum(round.network.losses(params)) / len(round.network.rows))
    near("loss of the model", loss(params), stated["model_loss_nano"])
    weight = sum(round.weights[i] for i in remaining)
    improvement = min(stated["total_nano"], stated["loss_before_nano"] - stated["model_loss_nano"])
    reasons = [
        ("unresolved", not resolved), ("no_update_remains", weight == 0),
        ("majority_excluded", sum(round.weights) > 2 * weight), ("no_improvement", improvement <= 0),
    ]
    void = next((reason for reason, applies in reasons if applies), None)
    same("void", void, v["void"])
    baseline = None
    if void:
        params = round.base
    elif round.task["rounds"]["baseline_epochs"]:
        earlier = [row for raw in v["earlier_rows"] for row in disclosed_rows(round.task, b64decode(raw))]
        params, baseline = after_baseline(round, earlier, params, loss)
        for name in baseline:
            near(name, baseline[name] or 0, result["baseline"][name] or 0)
    same("baseline", baseline is None, result["baseline"] is None)
    metrics = result["metrics"]
    same("rows", len(round.network.rows), metrics["rows"])
    same("correct before", round.network.correct(round.base), metrics["correct_before"])
    same("correct after", round.network.correct(params), metrics["correct_after"])
    near("loss after in f32", loss(params), metrics["loss_after_nano"])
    same("model", blake3(model_file(round.task["model"], params)).hexdigest(), result["model"])


def check_cross_check_vector(v):
    """The coalitions that a seed draws, and the scores that follow from their stated values."""
    count, known = v["players"], {tuple(each["members"]): each["value_nano"] for each in v["table"]}
    asked = {()}

    def worth(coalition):
        members = tuple(sorted(coalition))
        asked.add(members)
        return known[members] / 1e9

    scores = cross_check.scores(worth, int(v["seed"]), count, v["pairs"])
    same("coalitions", sorted(asked), sorted(known))
    for ours, theirs in zip(scores, v["scores_nano"], strict=True):
        near("score", nano(ours), theirs)
