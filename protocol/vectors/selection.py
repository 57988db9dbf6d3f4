"""Recomputes a cohort from its candidates and the reports of all earlier rounds, by docs/selection.md."""

from blake3 import blake3

LEVEL = 16


def smooth(known, new):
    total = 3 * known + new
    return total // 4 if total >= 0 else -(-total // 4)


class History:
    def __init__(self, reports, late_rounds):
        self.members, self.improvements, self.too_few, self.asked = {}, [], False, 0
        self.losses, self.shares = [], {}
        self.late_rounds = late_rounds
        for report in reports:
            self.add(report)

    def member(self, account):
        zero = {"selected": 0, "delivered": 0, "failed": 0, "last": 0, "ms": 0, "rows": 0,
                "score": 0, "error": 0, "since": 0, "began": 0}
        return self.members.get(account, zero)

    def add(self, report):
        times = report["times"]
        senders = [entry["sender"] for entry in report["entries"]]
        number = report["scope"]["round"]
        cohort = senders + [account for account, _ in report["missing"]]
        for account, member in self.members.items():
            if account not in cohort:
                member["since"] = 0
        if not self.late_rounds:
            self.add_attendance(report, len(set(cohort)))
        for account in cohort:
            member = self.members.setdefault(account, self.member(account))
            if not member["since"]:
                member["selected"] += 1
                member["last"] = member["since"] = number
                member["began"] = times["opened"]
        for (account, _), at in zip(report["commits"], times["commits"]):
            member = self.members.setdefault(account, self.member(account))
            began = member["began"] if member["since"] else times["opened"]
            member["since"] = 0
            taken = max(at - began, 1)
            member["ms"] = smooth(member["ms"], taken) if member["ms"] else taken
        scores = {}
        if report["valuation"] is not None:
            scores = {line["account"]: line for line in report["valuation"]["scores"]}
        for entry in report["entries"]:
            member = self.members[entry["sender"]]
            member["delivered"] += 1
            member["rows"] += entry["rows_counted"]
            if entry["sender"] in scores:
                line, is_first = scores[entry["sender"]], member["score"] == member["error"] == 0
                for key in ("score", "error"):
                    new = line[key + "_nano"]
                    member[key] = new if is_first else smooth(member[key], new)
        reason = report["outcome"]["abandoned"] if "abandoned" in report["outcome"] else None
        needed = reason["too_few_updates"]["needed"] if reason and "too_few_updates" in reason else 0
        self.too_few = needed > 0
        for account, reason in report["missing"]:
            member = self.members[account]
            began, since = member["began"], member["since"]
            member["since"] = 0
            if reason == "no_commit":
                closed = min(times["commits_closed"], times["commit_by"])
                member["ms"] = max(member["ms"], closed - began)
                if number - since < self.late_rounds:
                    member["since"] = since
                    continue
                if times["commits_closed"] < times["commit_by"] and not self.late_rounds:
                    continue
            elif reason == "no_reveal" and len(report["commits"]) < needed:
                continue
            member["failed"] += 1
        gained = report["valuation"]["total_nano"] if report["outcome"] == "settled" else 0
        self.improvements = (self.improvements + [max(gained, 0)])[-10:]
        effects = report["valuation"] and report["valuation"]["evidence"]["class_effects"]
        if effects:
            self.add_classes(report, effects)

    def add_attendance(self, report, cohort):
        """Participants to ask for each commit, in parts of 256."""
        commits, outcome = len(report["commits"]), report["outcome"]
        reason = outcome["abandoned"] if "abandoned" in outcome else None
        needed = reason["too_few_updates"]["needed"] if reason and "too_few_updates" in reason else 1
        if report["times"]["commits_closed"] < report["times"]["commit_by"]:
            self.asked -= -(-self.asked // 32)
        elif commits < needed:
            self.asked = min(max(self.asked, 256) * 2, 16 * 256)
        else:
            self.asked = min(cohort * 256 * 3 // (commits * 2), 16 * 256)

    def asked_for(self, wanted):
        return -(-wanted * max(self.asked, 256) // 256)

    def add_classes(self, report, effects):
        known = self.losses or [0] * len(effects["losses_nano"])
        self.losses = [
            old if new is None else smooth(old, new) if old else new
            for old, new in zip(known, effects["losses_nano"])
        ]
        for entry, shares in zip(report["entries"], effects["shares"]):
            sender, new = entry["sender"], [share * 256 for share in shares]
            if sum(shares) >= 128:
                old = self.shares.get(sender, new)
                self.shares[sender] = [(a + b) // 2 for a, b in zip(old, new)]

    def balances_classes(self, knob):
        return knob in ("fair_accuracy", "performance") and bool(self.losses)

    def is_stalled(self):
        older, newer = self.improvements[:5], self.improvements[5:]
        return len(newer) == 5 and sum(newer) * 8 < sum(older)


def weights(knob, stalled):
    """Speed, reliability, utility, waiting, work."""
    return {
        "fast": (6, 4, 4, 2, 0) if stalled else (10, 4, 2, 0, 0),
        "fair_work": (0, 4, 0, 0, 12),
        "fair_accuracy": (0, 0, 16, 0, 0),
        "performance": (0, 2, 4, 10, 0) if stalled else (0, 2, 6, 8, 0),
    }[knob]


def reliability(member):
    return (member["delivered"] + 7) * LEVEL // (member["delivered"] + member["failed"] + 8)


def work(member):
    """In thirds of an update: a round that asked in vain counts one, or three before the first update."""
    return member["selected"] + 2 * (member["delivered"] or member["selected"])


def share(value, highest):
    return min(value, highest) * LEVEL // highest if highest else 0


class Scale:
    def __init__(self, knob, number, candidates, history, accounts, places):
        self.knob, self.number, self.history = knob, number, history
        self.quotes = {account: one["quote_ms"] for account, one in candidates["accounts"].items()}
        ratios = []
        for account, quote in sorted(self.quotes.items()):
            observed = history.member(account)["ms"]
            if observed and quote:
                ratios.append(observed * 256 // quote)
        ratios.sort()
        self.factor = max(ratios[len(ratios) // 2] if ratios else 256, 1)
        known = sorted(ms for ms in map(self.predicted, accounts) if ms is not None)
        pool = max(min(places * 2, len(known)) - 1, 0)
        self.fast = known[pool] if known else 2**64 - 1
        members = [history.member(account) for account in accounts]
        utilities = sorted(self.utility(member) for member in members if member["delivered"])
        clip = min(len(utilities) * 95 // 100, max(len(utilities) - 1, 0))
        self.utility_max = utilities[clip] if utilities else 0
        self.work_max = max(map(work, members), default=0)
        self.by_classes = history.balances_classes(knob) and places <= 128
        self.counts_speed = weights(knob, history.is_stalled())[0] > 0 if knob != "random" else False

    def predicted(self, account):
        ms = self.history.member(account)["ms"]
        if ms:
            return ms
        quote = self.quotes.get(account, 0)
        return -(-quote * self.factor // 256) if quote else None

    def speed(self, account):
        predicted = self.predicted(account)
        if predicted is None:
            return 0
        return LEVEL if predicted <= self.fast else self.fast**2 * LEVEL // predicted**2

    def utility(self, member):
        score = max(max(member["score"], 0) - member["error"], 0)
        if self.knob != "fair_accuracy":
            return score
        return score // max(member["rows"] // max(member["delivered"], 1), 1)

    def score(self, account):
        member = self.history.member(account)
        if self.by_classes:
            return 16 * reliability(member)
        waited = max(self.number - member["last"], 1)
        levels = (
            self.speed(account), reliability(member),
            self.utility_level(member),
            min((waited.bit_length() - 1) * 4, LEVEL), LEVEL - share(work(member), self.work_max),
        )
        weighted = zip(weights(self.knob, self.history.is_stalled()), levels)
        return sum(weight * level for weight, level in weighted)


    def utility_level(self, member):
        if member["delivered"]:
            return share(self.utility(member), self.utility_max)
        return 0 if member["failed"] else LEVEL // 2

    def is_untried(self, account):
        is_quoted = self.counts_speed and self.predicted(account) is not None
        return self.history.member(account)["selected"] == 0 and not is_quoted

    def explore_weight(self, account):
        return self.speed(account) ** 2 if self.counts_speed else 1


def log2(number):
    whole = number.bit_length() - 1
    mantissa = number << (63 - whole) if whole <= 63 else number >> (whole - 63)
    log = whole
    for _ in range(32):
        mantissa = mantissa * mantissa >> 63
        log <<= 1
        if mantissa >> 64:
            mantissa >>= 1
            log |= 1
    return log


def raw(text):
    return bytes.fromhex(text.removeprefix("0x"))


def finishers(seed, number, race_number, weighted, places):
    """The first of an exponential race, in their order; quotients are compared exactly."""
    from fractions import Fraction

    def finish(pair):
        account, weight = pair
        content = raw(seed) + number.to_bytes(4, "little") + bytes([race_number]) + raw(account)
        head = blake3(content, derive_key_context="florin v1 selection").digest(8)
        drawn = (64 << 32) - log2(int.from_bytes(head, "little") + 1)
        return Fraction(drawn, max(weight, 1)), raw(account)

    return [account for account, _ in sorted(weighted, key=finish)[:places]]


def race(*arguments):
    return sorted(finishers(*arguments), key=raw)


def complementary(knob, history, left, places):
    """Those with which the shares of the classes are nearest to the wanted ones, one after the other."""
    powers = [loss * loss if knob == "fair_accuracy" else loss for loss in history.losses]
    weights = [power * 10**6 // sum(powers) if sum(powers) else 0 for power in powers]
    have, chosen = [0] * len(weights), []
    for place in range(1, min(places, len(left)) + 1):
        wanted = [weight * 255 * 256 * place // 10**6 for weight in weights]
        distance = lambda account: sum(
            (want - old - share) ** 2 for want, old, share in zip(wanted, have, history.shares[account])
        )
        best = min(left, key=distance)
        left = [account for account in left if account != best]
        have = [old + share for old, share in zip(have, history.shares[best])]
        chosen.append(best)
    return sorted(chosen, key=raw)


def draw(seed, number, accounts, places):
    ticket = lambda account: blake3(
        raw(seed) + number.to_bytes(4, "little") + raw(account), derive_key_context="florin v1 cohort"
    ).digest()
    return sorted(accounts, key=ticket)[:places]


def micro(number):
    whole, _, part = str(number).partition(".")
    return int(whole) * 10**6 + int(part.ljust(6, "0") or 0)


def explored_places(explore, number, places, untried):
    early = 900
    for _ in range(1, number):
        early = early * 950 // 1000
    ceil = lambda number, parts: -(-number // parts)
    return min(max(ceil(places * explore, 10**6), min(ceil(places * early, 1000), untried)), places)


def by_score(rules, number, candidates, history, eligible, places):
    seed, knob = candidates["seed"], rules["selection"]["knob"]
    scale = Scale(knob, number, candidates, history, eligible, places)
    tried = [(a, scale.score(a)) for a in eligible if not scale.is_untried(a) and scale.score(a)]
    explored = explored_places(micro(rules["selection"]["explore"]), number, places, sum(map(scale.is_untried, eligible)))
    exploited = min(places - explored, len(tried))
    scores = sorted((score for _, score in tried), reverse=True)
    cut = scores[max(exploited - 1, 0)] * 95 // 100 if scores else 0
    if scale.by_classes:
        known = [pair for pair in tried if pair[0] in history.shares]
        left = finishers(seed, number, 0, known, exploited * 5)
        best, reason = complementary(knob, history, left, exploited), "complements"
    else:
        best = race(seed, number, 0, [pair for pair in tried if pair[1] >= cut], exploited)
        reason = "best"
    left = [account for account in eligible if account not in best]
    untried = [(a, scale.explore_weight(a)) for a in left if scale.is_untried(a)]
    others = race(seed, number, 1, untried, places - len(best))
    again = [(a, scale.explore_weight(a)) for a in left if not scale.is_untried(a)]
    others += race(seed, number, 2, again, places - len(best) - len(others))
    return [(account, reason) for account in best] + [(account, "explored") for account in others]


def select(rules, number, candidates, history):
    """The cohort with its reasons, ascending."""
    standing = lambda name: [
        account for account, one in sorted(candidates["accounts"].items(), key=lambda pair: raw(pair[0]))
        if one["standing"] == name
    ]
    most = rules["cohort_target"] + rules["over_selection"]
    goes_on = [account for account in sorted(standing("eligible") + standing("newcomer"), key=raw)
               if history.member(account)["since"]][:most]
    eligible, knob = [a for a in standing("eligible") if a not in goes_on], rules["selection"]["knob"]
    places = most
    if knob != "random" and not history.late_rounds:
        total = sum(reliability(history.member(account)) for account in eligible)
        needed = rules["cohort_target"] * len(eligible) * LEVEL // total if total else most
        asked = history.asked_for(rules["cohort_target"])
        needed = max(needed, min(asked, 128) if knob in ("fair_accuracy", "performance") else asked)
        places = min(max(needed, rules["cohort_target"]), most)
    places = max(places - len(goes_on), 0)
    if knob == "random" or len(eligible) <= places:
        cohort = [(account, "drawn") for account in draw(candidates["seed"], number, eligible, places)]
    else:
        cohort = by_score(rules, number, candidates, history, eligible, places)
    for name, enough in (("newcomer", places), ("reserve", rules["cohort_min"] - len(goes_on))):
        if len(cohort) < enough:
            others = [account for account in standing(name) if account not in goes_on]
            more = draw(candidates["seed"], number, others, places - len(cohort))
            cohort += [(account, name) for account in more]
    cohort += [(account, "continues") for account in goes_on]
    return sorted(cohort, key=lambda pair: raw(pair[0]))


def deadline_ms(rules, number, candidates, history, cohort):
    rule = rules["deadline"]
    if rule["kind"] == "fixed" or history.too_few:
        return rules["train_ms"]
    scale = Scale(rules["selection"]["knob"], number, candidates, history, cohort, len(cohort))
    begins = [account for account in cohort if not history.member(account)["since"]]
    known = sorted(scale.predicted(account) or rules["train_ms"] for account in begins)
    if not known:
        return rules["train_ms"]
    at = -(-max(len(begins) - 1, 0) * micro(rule["quantile"]) // 10**6)
    waited = known[min(at, len(known) - 1)] * micro(rule["slack"]) // 10**6
    return min(max(waited, -(-rules["train_ms"] // 16)), rules["train_ms"])


def check_selection(vector):
    rules, number, candidates = vector["rules"], vector["round"], vector["candidates"]
    history = History(vector["reports"], rules["staleness"]["rounds"])
    cohort = select(rules, number, candidates, history)
    assert [account for account, _ in cohort] == vector["cohort"], "cohort differs"
    assert [reason for _, reason in cohort] == vector["reasons"], "reasons differ"
    allowed = deadline_ms(rules, number, candidates, history, vector["cohort"])
    assert allowed == vector["commit_ms"], "deadline differs"
