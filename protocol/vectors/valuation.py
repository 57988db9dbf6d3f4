"""Recomputes whole rounds in miniature from bytes: models, updates and disclosed rows in, scores in nano-nats and the
digest of the next model out. It has no Florin code: docs/protocol.md is its only source. `check.py` runs it.

Preprocessing, weights, exclusions, void reasons, the baseline and the model's digest must be equal. Losses, scores,
standard errors, derivatives and coalition values may differ by 10 nano-nats, as between honest machines: `math.exp` and
`math.log` may differ from another library's in the last bit. Convolutional networks are not covered.
"""

from base64 import b64decode
from itertools import combinations
from math import fsum, isfinite, isqrt, sqrt

from blake3 import blake3

import cross_check
from aggregation import aggregated, norm, round32
from baseline import after_baseline
from blobs import decode_model, decode_update, disclosed_rows, model_file
from draws import Stream
from duplicates import find_duplicates
from network import Network
from quadrature import NODES
from rounds import is_confirmed, is_excluded, is_resolved, micro, rungs, same

TOLERANCE, MICRO, GROUPS = 10, 10**6, 32
PERMUTATIONS = 0x726F7770
PERMUTED_MAX = 64
IMPROVEMENT_MIN = 200_000


def nano(nats):
    """Python rounds halves to even."""
    return round(nats * 1e9)


# --- the valuation ---


def weigh(rows, staleness, rule):
    """The weight of an update that is late by this many versions."""
    versions = staleness + 1
    weight = {"equal": rows, "inverse": rows // versions, "inverse_root": isqrt(rows * rows // versions)}
    return max(weight[rule], min(rows, 1))


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
        # All updates of a task have the same header.
        self.header = b64decode(v["update_header"])
        self.deltas = [decode_update(self.task, self.header + b64decode(raw)) for raw in v["updates"]]
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
            earlier = [(by, decode_update(self.task, self.header + b64decode(raw))) for by, raw in v["earlier_updates"]]
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
        rows = [weigh(x, entry["staleness"], self.task["rounds"]["staleness"]["weight"])
                for x, entry in zip(rows, self.entries)]
        self.weights, self.factors = rows, [MICRO] * len(rows)
        norms = [norm(delta) for delta in self.deltas]
        ordered = sorted((x, w) for x, w in zip(norms, rows) if x > 0 and w)
        if rules["norm_scaling"] == "median" and ordered:
            half = lambda k: 2 * sum(w for _, w in ordered[: k + 1]) >= sum(rows)
            median = next(x for k, (x, _) in enumerate(ordered) if half(k))
            for i, x in enumerate(norms):
                if x > 0:
                    self.factors[i] = int(min(median / x, 2.0) * 1e6)
                    factor = self.factors[i] / 1e6
                    if self.factors[i] != MICRO:
                        self.deltas[i] = [round32(step * factor) for step in self.deltas[i]]

    def stage(self, members, with_gap=True):
        """Values members on the first rung that resolves them; returns whether one does."""
        game, passes = Game(self, members), 1
        ladder = rungs(self.task["estimator"].get("nodes"), len(members))
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
        pairs, count, self.check = self.task["estimator"].get("cross_check_pairs"), len(members), None
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


# --- the classes ---


def class_effects(round):
    """The loss of each class, and the parts of 255 of each class in what every update alone improves."""
    labels = [label for _, label in round.network.rows]
    classes, count = round.task["model"]["classes"], len(round.entries)
    reads = round.task["rounds"]["selection"]["knob"] in ("fair_accuracy", "performance")
    if not reads or not 2 <= classes <= 64 or count > PERMUTED_MAX or not any(round.weights):
        return None
    means = lambda values: [mean_of([x for x, label in zip(values, labels) if label == c]) for c in range(classes)]
    before, shares = round.network.losses(round.base), []
    sizes = sorted((norm(delta), weight) for delta, weight in zip(round.deltas, round.weights) if weight and norm(delta))
    half = lambda k: 2 * sum(weight for _, weight in sizes[: k + 1]) >= sum(weight for _, weight in sizes)
    size = next((x for k, (x, _) in enumerate(sizes) if half(k)), 0)
    for weight, delta in zip(round.weights, round.deltas):
        factor = size / norm(delta) if weight and norm(delta) else 0
        after = round.network.losses([x + factor * step for x, step in zip(round.base, delta)])
        lowered = [improvement(mean) for mean in means([a - b for a, b in zip(before, after)])]
        whole = max(sum(lowered), IMPROVEMENT_MIN)
        shares.append([255 * each // whole for each in lowered] if weight else [])
    round.units += 1 + sum(1 for weight in round.weights if weight)
    return {"losses_nano": [None if mean is None else nano(mean) for mean in means(before)], "shares": shares}


def mean_of(values):
    return sum(values) / len(values) if values else None


def improvement(mean):
    """Nano-nats of a class; 0 without a row, and for a loss that grows, even to infinity."""
    return max(nano(mean), 0) if mean is not None and isfinite(mean) else 0


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


def check_class_effects(ours, theirs):
    if ours is None or theirs is None:
        return same("class effects", ours, theirs)
    for a, b in zip(ours["losses_nano"], theirs["losses_nano"], strict=True):
        near("loss of a class", -1 if a is None else a, -1 if b is None else b)
    for a, b in zip(ours["shares"], theirs["shares"], strict=True):
        assert len(a) == len(b) and all(abs(x - y) <= 1 for x, y in zip(a, b)), f"shares: ours {a}, theirs {b}"


def check_valuation_vector(v):
    round, result = Round(v), v["result"]
    resolved, remaining = round.value()
    effects = class_effects(round)
    stated = result["valuation"]
    check_stages(round.stages, stated["stages"])
    check_scores(round, remaining, stated)
    check_cross_check(round.check, stated["evidence"]["cross_check"])
    check_class_effects(effects, stated["evidence"]["class_effects"])
    before = nano(sum(round.before) / len(round.before))
    near("loss before", before, stated["loss_before_nano"])
    near("loss after", round.after, stated["loss_after_nano"])
    near("total", round.total, stated["total_nano"])
    near("gap", round.gap, stated["gap_nano"])
    same("units", round.units, stated["units"])
    included = [i for i in remaining if not round.duplicates[i]]
    params = aggregated(round, included)
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
