"""Finds near-duplicates, as docs/protocol.md states them. It has no Florin code. `check.py` runs it."""

import math

from rounds import MICRO, micro, same

COPY, REPLAY = (0.85, 0.7), (0.95, 0.5)
NOISE = 3.0
SMALL = 400
ROUNDING = 1e-6


def dot(u, v):
    return sum(x * y for x, y in zip(u, v))


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


class Comparison:
    """The vectors of a round: its updates, the global deltas, and the updates of earlier rounds."""

    def __init__(self, updates, deltas, earlier):
        self.vectors = updates + deltas + earlier
        self.size, self.updates = len(updates[0]), range(len(updates))
        self.deltas = range(len(updates), len(updates) + len(deltas))
        self.whole = [[dot(u, v) for v in self.vectors] for u in self.vectors]
        self.rest = self.project_out(self.whole, self.deltas)
        self.same = 1 - 1e-9 if self.size < SMALL else 0.99995

    def project_out(self, products, known):
        """The products of what remains of each vector without the known ones."""
        for k in known:
            square = products[k][k]
            if square > ROUNDING * self.whole[k][k]:
                count = range(len(products))
                products = [
                    [products[i][j] - products[i][k] * products[j][k] / square for j in count] for i in count
                ]
        return products

    def cosine(self, i, j):
        norms = math.sqrt(self.whole[i][i]) * math.sqrt(self.whole[j][j])
        return self.whole[i][j] / norms if norms else 0.0

    def own_part(self, later, earlier, others):
        near = [(k, rows, min(self.cosine(k, later), self.cosine(k, earlier))) for k, rows in others]
        weights = [(k, rows * least) for k, rows, least in near if least > 0.2]
        if not weights:
            return None
        total = sum(w for _, w in weights)
        weights = [(k, w / total) for k, w in weights]
        to = {i: sum(w * self.cosine(i, k) for k, w in weights) for i in {later, earlier} | {k for k, _ in weights}}
        mean = sum(w * to[k] for k, w in weights)
        lengths = (1 - 2 * to[later] + mean) * (1 - 2 * to[earlier] + mean)
        if lengths <= ROUNDING**2:
            return None
        x = (self.cosine(later, earlier) - to[later] - to[earlier] + mean) / math.sqrt(lengths)
        squares = sum(w * w for _, w in weights)
        chance = squares / (1 + squares)
        return (x - chance) / (1 - chance)

    def agreement(self, later, earlier, others):
        if len(others) < 2 or self.size < SMALL:
            return None
        rest = self.project_out(self.rest, [earlier])
        remains = lambda k: rest[k][k] > ROUNDING * self.whole[k][k]
        if not remains(later):
            return 0.0
        cosine = lambda k: abs(rest[later][k]) / math.sqrt(rest[later][later] * rest[k][k]) if remains(k) else 0.0
        seen = sorted((cosine(k), rows) for k, rows in others)
        return max(quantile(seen), quantile([(c, 1) for c, _ in seen])) * math.sqrt(self.size)

    def matches(self, later, earlier, witnesses, limits):
        """Whether an update repeats a vector."""
        cosine = self.cosine(later, earlier)
        if cosine > self.same:
            return True
        if cosine <= limits[0]:
            return False
        others = [
            (k, rows) for k, rows in enumerate(witnesses)
            if rows and k not in (later, earlier) and self.whole[k][k] > 0
        ]
        agreement, own = self.agreement(later, earlier, others), self.own_part(later, earlier, others)
        return agreement is not None and agreement < NOISE and own is not None and own > limits[1]

    def is_copy(self, later, earlier, witnesses):
        return self.cosine(later, earlier) > COPY[0] and self.matches(later, earlier, witnesses, COPY)

    def replay(self, later, witnesses):
        """The cosine with the global deltas, if the update replays them."""
        whole, rest = self.whole[later][later], self.rest[later][later]
        cosine = math.sqrt(min(max(1 - rest / whole, 0), 1)) if whole else 0.0
        one = cosine > REPLAY[0] and any(self.matches(later, k, witnesses, REPLAY) for k in self.deltas)
        return cosine if cosine > self.same or one else None


def quantile(seen):
    needed, reached = 0.75 * sum(weight for _, weight in seen), 0
    for value, weight in seen:
        reached += weight
        if reached >= needed:
            return value


def without(witnesses, members):
    return [0 if k in members else rows for k, rows in enumerate(witnesses)]


def find(entries, compared, senders):
    """For each update the vector that it repeats and the cosine, or None."""
    first = compared.deltas.stop
    sent = [(first + i, next((k for k, e in enumerate(entries) if e["sender"] == who), None)) for i, who in enumerate(senders)]
    rows = [e["rows_counted"] for e in entries]
    own_of = dict(sent)

    def is_own_work(later, at, witnesses):
        by = own_of.get(at)
        if by == later and at in own_of:
            return True
        fewer = without(witnesses, {later, by})
        before = [k for k, who in sent if k < at and who == later]
        return any(compared.is_copy(at, k, fewer) for k in before)

    found = [None] * len(entries)
    for later in compared.updates:
        cosine = compared.replay(later, rows)
        found[later] = None if cosine is None else ("global_deltas", cosine)
    witnesses = [0 if f else r for f, r in zip(found, rows)]
    for later in compared.updates:
        for at, by in sent if not found[later] else []:
            if by == later or compared.cosine(later, at) <= COPY[0]:
                continue
            if compared.is_copy(later, at, without(witnesses, {by})) and not is_own_work(later, at, witnesses):
                found[later], witnesses[later] = (at, compared.cosine(later, at)), 0
                break
    order = sorted(compared.updates, key=lambda i: (entries[i]["commit_position"], i))
    for place, later in enumerate(order):
        for earlier in order[:place] if not found[later] else []:
            origin = earlier
            while origin in compared.updates and found[origin]:
                origin = found[origin][0]
            if compared.is_copy(later, earlier, witnesses) and not is_own_work(later, origin, witnesses):
                found[later], witnesses[later] = (earlier, compared.cosine(later, earlier)), 0
                break
    return found, first


def check_repeats(v):
    numbers = lambda text: [int(n) / v["denominator"] for n in text.split()]
    entries, earlier = v["entries"], v["earlier_updates"]
    updates = [numbers(e["update"]) for e in entries]
    most = max(1, len(updates[0]) // 50)
    deltas = [numbers(d) for d in v["global_deltas"]][:most]
    compared = Comparison(updates, deltas, [numbers(e["update"]) for e in earlier])
    found, first = find(entries, compared, [e["sender"] for e in earlier])
    for i, (ours, theirs) in enumerate(zip(found, v["duplicate_of"], strict=True)):
        if ours is None or theirs is None:
            same(f"duplicate {i}", ours, theirs)
            continue
        at, cosine = ours
        source = at if at == "global_deltas" else (
            {"same_round": entries[at]["sender"]} if at < first else {"earlier_round": earlier[at - first]["sender"]}
        )
        same(f"source {i}", source, theirs["source"])
        # Rounded down; sums in another order may differ in the last digit.
        assert abs(math.floor(min(cosine, 1) * MICRO) - micro(theirs["cosine"])) <= 1, f"cosine {i}: {cosine}"
    updates = [[0.0] * len(u) if f else u for f, u in zip(found, updates)]
    weights = cap_weights(v["weight_cap"], [0 if f else e["rows_counted"] for f, e in zip(found, entries)], updates)
    same("weights", weights, v["weights"])
    same("norm factors", norm_factors(weights, updates), [micro(f) for f in v["norm_factors"]])
