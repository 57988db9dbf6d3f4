"""Near-duplicates of updates, as docs/protocol.md states them."""

from math import sqrt

from rounds import same

COPY, REPLAY, OWN_COPY, OWN_REPLAY, NOISE = 0.85, 0.95, 0.7, 0.5, 3.0
WITNESS, QUANTILE, DIMENSIONS, ROUNDING = 0.2, 0.75, 400, 1e-6
PER_DELTA = 50
EARLIER_ROUNDS, EARLIER_BYTES = 8, 2**30


def product(a, b):
    """The inner product over eight interleaved lanes, then over the lanes."""
    lanes = [0.0] * 8
    for at, (x, y) in enumerate(zip(a, b)):
        lanes[at % 8] += x * y
    total = 0.0
    for lane in lanes:
        total += lane
    return total


class Vectors:
    """Inner products, before and after projecting out the global deltas."""

    def __init__(self, updates, steps, earlier):
        self.all = [*updates, *steps, *earlier]
        self.size, self.dimensions = len(self.all), len(self.all[0])
        self.steps = range(len(updates), len(updates) + len(steps))
        self.dots = [[product(a, b) for b in self.all] for a in self.all]
        self.rest = [list(row) for row in self.dots]
        for k in self.steps:
            square = self.rest[k][k]
            if square <= ROUNDING * self.dots[k][k]:
                continue
            along = [row[k] for row in self.rest]
            for i, row in enumerate(self.rest):
                self.rest[i] = [x - along[i] * along[j] / square for j, x in enumerate(row)]
        self.same = 0.99995 if self.dimensions >= DIMENSIONS else 1 - 1e-9

    def cosine(self, i, j):
        norms = sqrt(self.dots[i][i]) * sqrt(self.dots[j][j])
        return self.dots[i][j] / norms if norms > 0 else 0.0

    def others(self, later, earlier, rows):
        return [(k, w) for k, w in enumerate(rows) if k not in (later, earlier) and w and self.dots[k][k] > 0]

    def own_part(self, later, earlier, rows):
        """None if no other update is similar to both."""
        weights = []
        for k, w in self.others(later, earlier, rows):
            near = min(self.cosine(k, later), self.cosine(k, earlier))
            if near > WITNESS:
                weights.append((k, w * near))
        if not weights:
            return None
        total = sum(w for _, w in weights)
        weights = [(k, w / total) for k, w in weights]
        to = lambda i: sum(w * self.cosine(i, k) for k, w in weights)
        a, b, mean = to(later), to(earlier), sum(w * to(k) for k, w in weights)
        lengths = (1 - 2 * a + mean) * (1 - 2 * b + mean)
        if lengths <= ROUNDING * ROUNDING:
            return None
        squares = sum(w * w for _, w in weights)
        chance = squares / (1 + squares)
        return ((self.cosine(later, earlier) - a - b + mean) / sqrt(lengths) - chance) / (1 - chance)

    def agreement(self, later, earlier, rows):
        """None with too few others or parameters."""
        others = self.others(later, earlier, rows)
        if len(others) < 2 or self.dimensions < DIMENSIONS:
            return None
        along = self.rest[earlier][earlier]
        projects = along > ROUNDING * self.dots[earlier][earlier]

        def rest(i, j):
            own = self.rest[i][j]
            return own - self.rest[i][earlier] * self.rest[j][earlier] / along if projects else own

        remains = lambda k: rest(k, k) > ROUNDING * self.dots[k][k]
        if not remains(later):
            return 0.0
        seen = []
        for k, w in others:
            size = sqrt(rest(later, later)) * sqrt(rest(k, k)) if remains(k) else 0.0
            seen.append((abs(rest(later, k) / size) if size else 0.0, w))
        by_members = [(x, 1) for x, _ in seen]
        return max(quantile(seen), quantile(by_members)) * sqrt(self.dimensions)

    def matches(self, later, earlier, rows, least, own_least):
        cosine = self.cosine(later, earlier)
        if cosine > self.same:
            return True
        if cosine <= least:
            return False
        agreement, own = self.agreement(later, earlier, rows), self.own_part(later, earlier, rows)
        return agreement is not None and agreement < NOISE and own is not None and own > own_least

    def is_copy(self, later, earlier, rows):
        return self.matches(later, earlier, rows, COPY, OWN_COPY)

    def replay(self, later, rows):
        """The cosine with the update's projection on the global deltas, if it replays them."""
        whole, left = self.dots[later][later], self.rest[later][later]
        cosine = sqrt(min(1.0, max(0.0, 1 - left / whole))) if whole > 0 else 0.0
        if cosine > self.same:
            return cosine
        one = any(self.matches(later, step, rows, REPLAY, OWN_REPLAY) for step in self.steps)
        return cosine if cosine > REPLAY and one else None


def quantile(seen):
    seen, total = sorted(seen), 0.0
    needed = QUANTILE * sum(w for _, w in seen)
    for x, w in seen:
        total += w
        if total >= needed:
            return x


def find_duplicates(entries, updates, steps, earlier):
    """For each entry its match, as a score's `duplicate_of` states it."""
    steps = steps[: max(1, len(updates[0]) // PER_DELTA)]
    vectors = Vectors(updates, steps, [delta for _, delta in earlier])
    rows = [entry["rows_counted"] for entry in entries]
    entry_of = {entry["sender"]: at for at, entry in enumerate(entries)}
    first = len(entries) + len(steps)
    senders = [entry_of.get(by) for by, _ in earlier]
    found, origin = [None] * len(entries), {}

    def without(*those):
        return [0 if at in those else w for at, w in enumerate(rows)]

    def is_own(later, at):
        """Whether vector `at` is an earlier update of the sender of `later`, or a copy of one sent before."""
        if at < first:
            return False
        by = senders[at - first]
        if by == later:
            return True
        before = [first + k for k in range(at - first) if senders[k] == later]
        return any(vectors.is_copy(at, own, without(later, by)) for own in before)

    def reject(later, source, cosine, of):
        found[later] = {"source": source, "cosine": millionths(cosine)}
        origin[later] = of

    for later in range(len(entries)):
        cosine = vectors.replay(later, rows)
        if cosine is not None:
            reject(later, "global_deltas", cosine, None)
    for later, match in enumerate(found):
        rows[later] = 0 if match else rows[later]
    for later in (at for at in range(len(entries)) if not found[at]):
        for k, by in enumerate(senders):
            at = first + k
            if by == later or not vectors.is_copy(later, at, without(by)) or is_own(later, at):
                continue
            reject(later, {"earlier_round": earlier[k][0]}, vectors.cosine(later, at), at)
            rows[later] = 0
            break
    order = sorted(range(len(entries)), key=lambda at: entries[at]["commit_position"])
    for place, later in enumerate(order):
        for before in order[:place] if not found[later] else []:
            if not vectors.is_copy(later, before, rows):
                continue
            at = before
            while at is not None and at < len(entries) and found[at]:
                at = origin[at]
            if at is not None and is_own(later, at):
                continue
            reject(later, {"same_round": entries[before]["sender"]}, vectors.cosine(later, before), before)
            rows[later] = 0
            break
    return found


def millionths(cosine):
    """Rounded down, as decimal text."""
    whole, part = divmod(int(min(1.0, max(0.0, cosine)) * 1e6), 10**6)
    return f"{whole}.{part:06}".rstrip("0").rstrip(".")


def earlier_updates(reports, model_bytes):
    """The updates of earlier rounds that the next round is compared with: (sender, digest)."""
    settled = [at for at, report in enumerate(reports) if report["outcome"] == "settled"]
    rounds = []
    for report in reports[settled[-1] if settled else 0 :]:
        entries = sorted(report["entries"], key=lambda entry: entry["commit_position"])
        own = [[e["sender"], e["update"]] for e in entries if e["sender"] not in report["near_duplicates"]]
        rounds += [own] if own else []
    rounds = rounds[:1] + rounds[1:][-(EARLIER_ROUNDS - 1) :]
    room, fits = EARLIER_BYTES // model_bytes, set()
    for at in [0, *range(len(rounds) - 1, 0, -1)] if rounds else []:
        if len(rounds[at]) <= room:
            room -= len(rounds[at])
            fits.add(at)
    return [each for at in sorted(fits) for each in rounds[at]]


def check_earlier_updates(v):
    rejects = v["near_duplicates"] == "reject"
    listed = earlier_updates(v["reports"], v["model_bytes"]) if rejects else []
    same("earlier updates", listed, v["earlier_updates"])
