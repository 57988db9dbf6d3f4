"""Recomputes the integers of a round from its valuation, as docs/protocol.md states them: the gap rules, void rounds,
pay, debits, the floor, totals and the root of the claim tree. It has no Florin code. `check.py` runs it."""

from fractions import Fraction
from math import isqrt

from blake3 import blake3
from eth_abi import encode
from eth_utils import keccak

MICRO, NANO = 10**6, 10**9


def units(text, places=18):
    whole, _, part = text.partition(".")
    return int(whole + part.ljust(places, "0"))


def micro(text):
    return units(text, 6)


def same(what, ours, theirs):
    assert ours == theirs, f"{what}: ours {ours}, theirs {theirs}"


# --- the gap rules ---


def small_gap(total):
    return max(abs(total) // 50, 100_000)


def is_resolved(total, gap):
    return abs(gap) <= small_gap(total)


def is_confirmed(score, second, total):
    """Whether a second estimate confirms a score."""
    own, error = score["score_nano"], score["error_nano"]
    return own == error == 0 or abs(own - second) <= max(error, small_gap(total))


def check_confirmation(v):
    same("confirmed", is_confirmed(v, v["second_nano"], v["total_nano"]), v["confirmed"])


def check_gap(v):
    same("resolved", is_resolved(v["total_nano"], v["gap_nano"]), v["resolved"])


def rungs(nodes, updates):
    """The estimators that a stage tries, in order, each with its passes."""
    tried = [nodes] + [n for n in (6, 12) if n > nodes] if nodes else []
    rungs = [({"path": n}, n + 1) for n in tried]
    if updates <= 8:
        rungs.append(("shapley", 2**updates - 1))
    elif updates <= 64:
        rungs.append(({"permutations": 32}, 2 * 32 * (updates - 1) + 1))
    return rungs


def check_stage(nodes, updates, stage, tried=None):
    """One stage: its estimator is the first that resolves it, or else the last of all."""
    ladder = rungs(nodes, updates)
    names = [name for name, _ in ladder]
    assert stage["estimator"] in names, f"{stage['estimator']} is not one of {names}"
    last = names.index(stage["estimator"])
    # One more pass for the null standard deviation.
    same("units of the stage", 1 + sum(passes for _, passes in ladder[: last + 1]), stage["units"])
    resolved = is_resolved(stage["total_nano"], stage["gap_nano"])
    assert resolved or last == len(ladder) - 1, f"the stage ends unresolved before {names[-1]}"
    if tried is not None:
        figures = [(each["total_nano"], each["gap_nano"]) for each in tried]
        decided = next((i for i, each in enumerate(figures) if is_resolved(*each)), len(ladder) - 1)
        same("rung", decided, last)
        same("number of tried estimators", last + 1, len(figures))
        same("figures", figures[last], (stage["total_nano"], stage["gap_nano"]))
    return resolved


def check_gap_rule(v):
    """The decisions of the production valuation from the figures of each estimator."""
    sizes = [v["updates"], v["updates"] - len(v["excluded"])]
    remain = sizes[1] > 0
    same("number of stages", 2 if v["excluded"] and remain else 1, len(v["stages"]))
    resolved = [
        check_stage(v["nodes"], size, each["stage"], each["tried"])
        for size, each in zip(sizes, v["stages"])
    ]
    same("resolved", all(resolved), v["resolved"])
    same("units", 1 + sum(each["stage"]["units"] for each in v["stages"]), v["units"])


# --- the valuation of a report ---


def is_excluded(z, score):
    return -score["score_nano"] * MICRO > z * score["error_nano"]


def check_valuation(task, entries, valuation):
    """Returns why the round is void, or None, and its improvement."""
    estimator, z = task["estimator"], micro(task["budget"]["confidence_z"])
    scores, stages = valuation["scores"], valuation["stages"]
    same("accounts", [e["sender"] for e in entries], [s["account"] for s in scores])
    for entry, score in zip(entries, scores):
        own = score["preprocessing"]
        idle = score["score_nano"] == 0 and score["error_nano"] == 0
        nothing = own["duplicate_of"] is not None or (idle and own["weight"] == 0)
        same("weight", 0 if nothing else entry["rows_counted"], own["weight"])
        assert own["duplicate_of"] is None or idle, "a near-duplicate has a value"
    remaining = [s for s in scores if not s["excluded"]]
    sizes = [len(scores), len(remaining)]
    resolved = [
        check_stage(estimator["nodes"], size, stage) for size, stage in zip(sizes, stages)
    ]
    weight = sum(s["preprocessing"]["weight"] for s in remaining)
    excluded = sum(s["preprocessing"]["weight"] for s in scores if s["excluded"])
    same("stages", 2 if len(remaining) < len(scores) and weight else 1, len(stages))
    for score in scores:
        # An update that remains after the second stage was not excluded by the first one.
        if score["excluded"] or len(stages) == 1:
            same("excluded", resolved[0] and is_excluded(z, score), score["excluded"])
    before, total = valuation["loss_before_nano"], valuation["total_nano"]
    same("total", before - valuation["loss_after_nano"], total)
    same("gap", total - sum(s["score_nano"] for s in remaining), valuation["gap_nano"])
    if weight:
        figures = (stages[-1]["total_nano"], stages[-1]["gap_nano"])
        same("last stage", figures, (total, valuation["gap_nano"]))
    same("units", 1 + sum(stage["units"] for stage in stages), valuation["units"])
    check, confirmed = valuation["evidence"]["cross_check"], True
    if check and stages and "path" in stages[-1]["estimator"]:
        pairs = zip(remaining, check["scores_nano"], strict=True)
        confirmed = all(is_confirmed(score, second, total) for score, second in pairs)
    improvement = min(total, before - valuation["model_loss_nano"])
    reasons = [
        ("unresolved", not (all(resolved) and confirmed)), ("no_update_remains", weight == 0),
        ("majority_excluded", excluded > weight), ("no_improvement", improvement <= 0),
    ]
    return next((reason for reason, applies in reasons if applies), None), improvement


# --- pay ---


def split(pool, weights):
    """The largest remainder method; ties go to the earlier position."""
    if pool == 0 or not any(weights):
        assert pool == 0 or not weights or not any(weights)
        return [0] * len(weights)
    exact = [Fraction(pool * w, sum(weights)) for w in weights]
    parts = [int(e) for e in exact]
    order = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in order[: pool - sum(parts)]:
        parts[i] += 1
    return parts


def payable(z, account):
    root = isqrt(account["variance"])
    root += root * root < account["variance"]
    return max(0, account["score_sum"] - -(-root * z // MICRO))


def split_floor(floor, outcome, z, scores, accounts):
    def stands_out(s):
        own = accounts[s["account"]]
        return not s["excluded"] and s["preprocessing"]["weight"] and payable(min(z, 2 * MICRO), own) > 0

    separates = any(map(stands_out, scores))

    def qualifies(s):
        if outcome == "settled":
            return stands_out(s) if separates else not s["excluded"]
        return stands_out(s) if outcome == "no_improvement" and separates else True

    positive = sorted(s["preprocessing"]["weight"] for s in scores if s["preprocessing"]["weight"])
    median = positive[(len(positive) - 1) // 2] if positive else 0
    weights = [min(s["preprocessing"]["weight"], median) if qualifies(s) else 0 for s in scores]
    return split(floor, weights)


def root_of(accounts):
    types, leaves = ["address", "uint256", "uint256"], []
    for address, own in accounts.items():
        paid = own["data"] + own["infrastructure"]
        if paid or own["debited"]:
            leaves.append(keccak(keccak(encode(types, [address, paid, own["debited"]]))))
    heap = [b""] * (len(leaves) - 1) + sorted(leaves, reverse=True)
    for i in reversed(range(len(leaves) - 1)):
        heap[i] = keccak(b"".join(sorted(heap[2 * i + 1 : 2 * i + 3])))
    return heap[0].hex() if heap else "00" * 32


class Task:
    """A task's totals, round by round."""

    def __init__(self, spec):
        self.spec, self.budget = spec, spec["budget"]
        self.accounts, self.improvement, self.root = {}, 0, "00" * 32
        self.score_pay = self.data = self.infrastructure = 0

    def account(self, address):
        zeros = dict.fromkeys(
            ("score_sum", "variance", "paid_score", "data", "infrastructure", "debited"), 0
        )
        return self.accounts.setdefault(address, zeros)

    def check(self, report):
        number, count = report["scope"]["round"], self.spec["rounds"]["count"]
        budget, valuation, scores = self.budget, report["valuation"], []
        self.z, self.is_last = micro(budget["confidence_z"]), number == count
        self.outcome = "abandoned"
        if valuation:
            for entry in report["entries"]:
                covered = units(entry["bond"]) // units(budget["bond_per_row"])
                same("rows counted", min(entry["rows_declared"], covered), entry["rows_counted"])
            void, improvement = check_valuation(self.spec, report["entries"], valuation)
            scores, self.outcome = valuation["scores"], void or "settled"
            same("outcome", {"void": void} if void else "settled", report["outcome"])
            self.improvement += 0 if void else improvement
            self.gained = improvement
        else:
            assert "abandoned" in report["outcome"], "a round without a valuation"
            if report["outcome"]["abandoned"] == "task_ended":
                assert not report["commits"] and not report["entries"], "an update after the end"
                self.is_last = True
        if self.outcome != "settled":
            same("model", report["base_model"], report["model"])
        pool = (units(budget["data"]) - self.data) // (count - number + 1)
        same("pool", pool, units(report["pool"]))
        floor = micro(budget["floor_share"]) * units(budget["data"]) // (MICRO * count)
        self.for_scores = max(0, pool - floor)
        self.pay(report, scores, pool, min(pool, floor))
        self.pay_work(report)
        self.check_totals(report)

    def increment(self, own):
        due = payable(self.z, own)
        due = own["score_sum"] if self.is_last and due > 0 else due
        return max(0, due - own["paid_score"])

    def line(self, score):
        """The increment of an update and the reason for its line."""
        own = self.account(score["account"])
        is_void = self.outcome != "settled"
        due = self.increment(own)
        if score["excluded"] and not is_void:
            return (due if self.is_last else 0), "excluded"
        if due > 0:
            return (0, "carried_over") if is_void and not self.is_last else (due, "paid")
        if score["score_nano"] == 0 and score["error_nano"] == 0:
            return 0, "idle"
        return 0, "withheld" if own["score_sum"] > 0 else "not_helpful"

    def pay(self, report, scores, pool, floor):
        for score in scores if self.outcome != "unresolved" else []:
            own = self.account(score["account"])
            own["score_sum"] += score["score_nano"]
            own["variance"] += score["error_nano"] ** 2
        rows = [(score["account"], *self.line(score)) for score in scores]
        scored = {address for address, *_ in rows}
        for address in sorted(self.accounts) if self.is_last else []:
            if address not in scored and self.increment(self.accounts[address]) > 0:
                rows.append((address, self.increment(self.accounts[address]), "paid"))
        total, per_nat = sum(row[1] for row in rows), units(self.budget["per_nat_max"])
        covered = per_nat * self.improvement // NANO
        spent = min(pool - floor, per_nat * total // NANO, max(0, covered - self.score_pay))
        floors = split_floor(floor, self.outcome, self.z, scores, self.accounts)
        floors += [0] * (len(rows) - len(floors))
        lines, shares = [], split(spent, [row[1] for row in rows])
        for (address, due, reason), share, extra in zip(rows, shares, floors, strict=True):
            own = self.account(address)
            if spent == 0 and due > 0:
                due, reason = 0, "carried_over" if reason == "paid" else reason
            own["paid_score"] += due
            own["data"] += share + extra
            lines.append([address, due, share + extra, extra, 0, reason])
        for score, line, entry in zip(scores, lines, report["entries"]):
            if line[5] == "excluded":
                line[4] = self.debit(score, units(entry["bond"]), spent, total)
        stated = [
            [each["account"], int(each["increment"])]
            + [units(each[name]) for name in ("payout", "floor", "debit")] + [each["reason"]]
            for each in report["lines"] + report["final_lines"]
        ]
        same("lines", lines, stated)
        same("number of lines", len(scores), len(report["lines"]))
        self.score_pay += spent
        self.data += sum(line[2] for line in lines)

    def debit(self, score, bond, spent, total):
        harm, own = abs(score["score_nano"]), self.account(score["account"])
        per_nat = units(self.budget["per_nat_max"])
        price = spent * harm // total if spent else per_nat * harm // NANO
        price = min(price, self.for_scores * harm // self.gained)
        debit = min(price, units(self.budget["debit_max"]), bond)
        own["debited"] += debit
        own["paid_score"] = max(0, own["paid_score"] - harm * debit // price if price else own["paid_score"])
        return debit

    def pay_work(self, report):
        budget, rounds = units(self.budget["infrastructure"]), self.spec["rounds"]["count"]
        left = budget * min(report["scope"]["round"], rounds) // rounds - self.infrastructure
        for each in report["infrastructure"]:
            same("units of work", report["valuation"]["units"], each["units"])
            amount = min(left, units(self.budget["per_unit"]) * each["units"])
            same("pay of work", amount, units(each["amount"]))
            self.account(each["provider"])["infrastructure"] += amount
            self.infrastructure += amount
            left -= amount

    def check_totals(self, report):
        stated = {
            address: {
                "score_sum": int(own["score_sum_nano"]), "variance": int(own["variance_nano2"]),
                "paid_score": int(own["paid_score_nano"]),
                **{name: units(own[name]) for name in ("data", "infrastructure", "debited")},
            }
            for address, own in report["account_totals"].items()
        }
        same("account totals", self.accounts, stated)
        same("previous root", self.root, report["previous_root"])
        self.root = root_of(self.accounts)
        same("root", self.root, report["root"])
        totals = (self.improvement, self.score_pay, self.data, self.infrastructure)
        names = ("score_pay_total", "data_total", "infrastructure_total")
        same("totals", totals, (report["improvement_total_nano"], *(units(report[n]) for n in names)))
        raw = bytes.fromhex(report["scope"]["task"]) + report["scope"]["round"].to_bytes(4, "little")
        settlement = blake3(raw, derive_key_context="florin v1 payout").hexdigest()
        same("settlement id", settlement, report["settlement_id"])


def check_rounds(v):
    task = Task(v["task"])
    for number, report in enumerate(v["reports"], v["first_round"]):
        same("round", number, report["scope"]["round"])
        try:
            task.check(report)
        except AssertionError as error:
            raise AssertionError(f"round {number}: {error}") from None
