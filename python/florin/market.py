"""A market as its participants see it: tasks, rounds, scores, statements and models, read from a coordinator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florin.errors import FlorinError
from florin.fields import ADDRESS, U128_MAX, Fields
from florin.http import TIMEOUT_S, Http
from florin.parameters import decode, model_bytes_max, tensors_of
from florin.table import Kind, Table

# Fewest digits of a shortened id.
ID_DIGITS_MIN = 6
# Limits of the protocol: rounds of a task, and accounts of a report.
ROUNDS_MAX, ACCOUNTS_MAX = 100_000, 20_000
# Reports that a Market keeps in memory: they do not change.
REPORTS_CACHED_MAX = 64

TASKS: dict[str, Kind] = {
    "id": "text", "name": "text", "phase": "text", "round": "count", "rounds": "count", "enrolled": "count",
    "data_units": "exact", "infrastructure_units": "exact",
}  # fmt: skip
ROUNDS: dict[str, Kind] = {
    "round": "count", "outcome": "text", "reason": "text", "updates": "count", "missing": "count", "rows": "count",
    "correct_before": "count", "correct_after": "count", "loss_before_nano": "exact", "loss_after_nano": "exact",
    "improvement_nano": "exact", "gap_nano": "exact", "estimator": "text", "pool_units": "exact",
    "data_units": "exact", "infrastructure_units": "exact", "data_total_units": "exact",
    "infrastructure_total_units": "exact", "model": "text",
}  # fmt: skip
SCORES: dict[str, Kind] = {
    "round": "count", "account": "text", "score_nano": "exact", "error_nano": "exact", "cross_check_nano": "exact",
    "excluded": "bool", "duplicate": "text", "weight": "count", "norm_factor_micro": "exact",
    "rows_declared": "count", "rows_counted": "count", "bond_units": "exact",
}  # fmt: skip
STATEMENTS: dict[str, Kind] = {
    "round": "count", "account": "text", "score_nano": "exact", "error_nano": "exact", "increment_nano": "exact",
    "payout_units": "exact", "floor_units": "exact", "infrastructure_units": "exact", "debit_units": "exact",
    "reason": "text",
}  # fmt: skip
TOTALS: dict[str, Kind] = {
    "account": "text", "score_sum_nano": "exact", "paid_score_nano": "exact", "data_units": "exact",
    "infrastructure_units": "exact", "debited_units": "exact",
}  # fmt: skip


class Market:
    """A market at the URL of its coordinator, by default FLORIN_MARKET.

    `certificate` is the file of a self-signed certificate (PEM), by default FLORIN_CERTIFICATE; `timeout` the longest
    wait for the coordinator's next bytes, in seconds. Nothing is sent but requests to read, and nothing needs a wallet.

    Errors are `FlorinError`: COORDINATOR_UNAVAILABLE, INVALID_RESPONSE, UNKNOWN_TASK and others by the coordinator. The
    figures are the coordinator's statements; `florin audit` recomputes them.
    """

    def __init__(
        self, url: str | None = None, *, certificate: str | Path | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        self._http = Http(url, certificate, timeout)
        self._reports: dict[tuple[str, int], Fields] = {}

    @property
    def url(self) -> str:
        return self._http.url

    def __repr__(self) -> str:
        return f"Market({self.url!r})"

    def info(self) -> dict[str, Any]:
        """The market, its coordinator and its ledger, as `GET /v1/market` returns them."""
        return _plain(self._http.json("market"), "GET market")

    def tasks(self) -> Table:
        """All tasks that were ever published here."""
        found = self._http.json("tasks")
        if not isinstance(found, list):
            raise Fields({"tasks": found}, "GET tasks").wrong("tasks", "a list")
        records = []
        for task in (Fields(item, "GET tasks") for item in found):
            records.append({
                "id": task.digest("id"),
                "name": task.text("name"),
                "phase": task.text("phase"),
                "round": task.whole("round"),
                "rounds": task.whole("rounds"),
                "enrolled": task.whole("enrolled"),
                "data_units": task.amount("data"),
                "infrastructure_units": task.amount("infrastructure"),
            })
        return Table(TASKS, records)

    def task(self, task: str) -> dict[str, Any]:
        """The public state of a task with its specification, as `GET /v1/tasks/{id}` returns it.

        A task is named by its id or by the first digits of it, at least six.
        """
        return _plain(self._http.json(f"tasks/{self._find(task)}"), "GET task")

    def report(self, task: str, round: int) -> dict[str, Any]:
        """A round's report, as `GET /v1/tasks/{id}/rounds/{round}/report` returns it, without its signature."""
        return dict(self._report(self._find(task), round)._value)

    def rounds(self, task: str) -> Table:
        """A row for each reported round: outcome, losses, improvement, pay."""
        return Table(ROUNDS, [_round(report) for report in self._all(task)])

    def scores(self, task: str) -> Table:
        """A row for each valued update: its score with the standard error, its weight, and why it does not count."""
        return Table(SCORES, [record for report in self._all(task) for record in _scores(report)])

    def statements(self, task: str, account: str | None = None) -> Table:
        """A row for each round and account that a report mentions: pay, debits and the reason.

        With `account` the rows of that account alone, as `florin statement` prints them.
        """
        if account is not None and not (isinstance(account, str) and ADDRESS.fullmatch(account)):
            remedy = "give 0x and 40 hexadecimal digits"
            raise FlorinError("INVALID_ADDRESS", f"{account!r} is no address", remedy=remedy)
        wanted = None if account is None else account.lower()
        records = [record for report in self._all(task) for record in _statements(report)]
        return Table(STATEMENTS, [r for r in records if wanted in (None, r["account"].lower())])

    def totals(self, task: str) -> Table:
        """The running totals of each account after the last reported round."""
        records: list[dict[str, Any]] = []
        view = self._view(self._find(task))
        reported = _reported(view)
        if reported == 0:
            return Table(TOTALS, records)
        totals = self._report(view.digest("id"), reported).object("account_totals")
        for account in sorted(totals._value, key=str.lower):
            own = totals.object(account)
            records.append({
                "account": account,
                "score_sum_nano": own.whole("score_sum_nano", -U128_MAX, U128_MAX),
                "paid_score_nano": own.whole("paid_score_nano", 0, U128_MAX),
                "data_units": own.amount("data"),
                "infrastructure_units": own.amount("infrastructure"),
                "debited_units": own.amount("debited"),
            })
        return Table(TOTALS, records)

    def model(self, task: str) -> dict[str, NDArray[np.float32]]:
        """The newest parameters of a task, by the model's own names: arrays of f32.

        The BLAKE3 digest of their bytes is computed here and compared with the one that the task's state names, and
        names and shapes with its specification. Raises `FlorinError`: WRONG_DIGEST, INVALID_MODEL.
        """
        from blake3 import blake3

        view = self._view(self._find(task))
        digest, tensors = view.digest("model"), tensors_of(view.object("spec"))
        received, hasher = bytearray(), blake3()

        def receive(chunk: bytes) -> None:
            hasher.update(chunk)
            received.extend(chunk)

        self._http.blob(digest, model_bytes_max(tensors), receive)
        got = hasher.hexdigest()
        if got != digest:
            message = f"blob {digest}: the coordinator sent bytes with digest {got}"
            remedy = "the bytes were changed or cut off on the way: try again, and report it to the operator"
            raise FlorinError("WRONG_DIGEST", message, remedy=remedy)
        return decode(received, tensors)

    def _find(self, task: str) -> str:
        digits = task.lower().removeprefix("0x") if isinstance(task, str) else ""
        if not re.fullmatch(rf"[0-9a-f]{{{ID_DIGITS_MIN},64}}", digits):
            remedy = f"write its 64 hexadecimal digits, or at least the first {ID_DIGITS_MIN}"
            raise FlorinError("INVALID_ID", f"{task!r} is not a task id", remedy=remedy)
        if len(digits) == 64:
            return digits
        found = [known for known in self.tasks().column("id") if known.startswith(digits)]
        if len(found) == 1:
            return str(found[0])
        if not found:
            raise FlorinError("UNKNOWN_TASK", f"no task id starts with {digits}", remedy="Market.tasks() lists all ids")
        shown = ", ".join(found[:4])
        raise FlorinError("AMBIGUOUS_ID", f"{digits} is the start of {len(found)} task ids, write more digits: {shown}")

    def _view(self, task: str) -> Fields:
        view = Fields(self._http.json(f"tasks/{task}"), f"GET tasks/{task[:8]}…")
        if view.digest("id") != task:
            raise FlorinError("UNEXPECTED_CONTENT", f"the coordinator sent task {view.digest('id')} for task {task}")
        return view

    def _all(self, task: str) -> Iterator[Fields]:
        view = self._view(self._find(task))
        return (self._report(view.digest("id"), number) for number in range(1, _reported(view) + 1))

    def _report(self, task: str, number: int) -> Fields:
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= ROUNDS_MAX:
            raise FlorinError("INVALID_ROUND", f"round {number!r}; give a whole number from 1 to {ROUNDS_MAX}")
        known = self._reports.get((task, number))
        if known is not None:
            return known
        name = f"GET tasks/{task[:8]}…/rounds/{number}/report"
        report = Fields(self._http.json(f"tasks/{task}/rounds/{number}/report"), name).object("body")
        scope = report.object("scope")
        if (scope.digest("task"), scope.whole("round")) != (task, number):
            raise FlorinError("UNEXPECTED_CONTENT", f"{name}: the report is that of another task or round")
        while len(self._reports) >= REPORTS_CACHED_MAX:
            del self._reports[next(iter(self._reports))]
        self._reports[task, number] = report
        return report


def _plain(value: Any, where: str) -> dict[str, Any]:
    return Fields(value, where)._value


def _reported(view: Fields) -> int:
    return view.whole("reported", 0, ROUNDS_MAX)


def _variant(value: Any) -> tuple[str, Any]:
    """The name and the content of an enum's variant."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, content),) = value.items()
        return str(name), content
    return str(value), None


def _total(objects: list[Fields], key: str) -> int:
    return sum(each.amount(key) for each in objects)


def _round(report: Fields) -> dict[str, Any]:
    outcome, reason = _variant(report.raw("outcome"))
    valuation, metrics = report.optional("valuation"), report.optional("metrics")
    stages = [] if valuation is None else valuation.objects("stages")
    estimator = _variant(stages[-1].raw("estimator")) if stages else None

    def of(fields: Fields | None, read: Callable[[Fields, str], int], key: str) -> int | None:
        return None if fields is None else read(fields, key)

    return {
        "round": report.object("scope").whole("round"),
        "outcome": outcome,
        "reason": None if reason is None else _variant(reason)[0],
        "updates": len(report.items("entries")),
        "missing": len(report.items("missing")),
        "rows": of(metrics, Fields.whole, "rows"),
        "correct_before": of(metrics, Fields.whole, "correct_before"),
        "correct_after": of(metrics, Fields.whole, "correct_after"),
        "loss_before_nano": of(valuation, Fields.nano, "loss_before_nano"),
        "loss_after_nano": of(metrics, Fields.nano, "loss_after_nano"),
        "improvement_nano": of(valuation, Fields.nano, "total_nano"),
        "gap_nano": of(valuation, Fields.nano, "gap_nano"),
        "estimator": None if estimator is None else " ".join(str(part) for part in estimator if part is not None),
        "pool_units": report.amount("pool"),
        "data_units": _total(report.objects("lines") + report.objects("final_lines"), "payout"),
        "infrastructure_units": _total(report.objects("infrastructure"), "amount"),
        "data_total_units": report.amount("data_total"),
        "infrastructure_total_units": report.amount("infrastructure_total"),
        "model": report.digest("model"),
    }


def _scores(report: Fields) -> Iterator[dict[str, Any]]:
    valuation = report.optional("valuation")
    if valuation is None:
        return
    entries, scores = report.objects("entries"), valuation.objects("scores")
    if len(entries) != len(scores):
        raise valuation.wrong("scores", f"a list of {len(entries)}")
    checked = valuation.object("evidence").optional("cross_check")
    second = iter([] if checked is None else checked.items("scores_nano"))
    for entry, score in zip(entries, scores):
        before, excluded = score.object("preprocessing"), score.flag("excluded")
        match = before.optional("duplicate_of")
        yield {
            "round": report.object("scope").whole("round"),
            "account": score.address("account"),
            "score_nano": score.nano("score_nano"),
            "error_nano": score.whole("error_nano"),
            "cross_check_nano": None if excluded else next(second, None),
            "excluded": excluded,
            "duplicate": None if match is None else _variant(match.raw("source"))[0],
            "weight": before.whole("weight"),
            "norm_factor_micro": before.micro("norm_factor"),
            "rows_declared": entry.whole("rows_declared"),
            "rows_counted": entry.whole("rows_counted"),
            "bond_units": entry.amount("bond"),
        }


def _statements(report: Fields) -> Iterator[dict[str, Any]]:
    """The accounts that the report mentions, ascending, as the program's statements."""
    lines = {line.address("account"): line for line in report.objects("lines") + report.objects("final_lines")}
    work: dict[str, int] = {}
    for item in report.objects("infrastructure"):
        provider = item.address("provider")
        work[provider] = work.get(provider, 0) + item.amount("amount")
    missing = {str(account): _variant(why) for account, why in report.pairs("missing")}
    entered = [entry.address("sender") for entry in report.objects("entries")]
    valuation = report.optional("valuation")
    valued = [] if valuation is None else valuation.objects("scores")
    scores = {score.address("account"): score for score in valued}
    accounts = sorted({*lines, *work, *missing, *entered}, key=str.lower)
    if len(accounts) > ACCOUNTS_MAX:
        raise report.wrong("entries", f"at most {ACCOUNTS_MAX} accounts")
    outcome, why = _variant(report.raw("outcome"))
    for account in accounts:
        line, score = lines.get(account), scores.get(account)
        if line is not None:
            reason = line.text("reason")
        elif account in missing:
            reason = " ".join(str(part) for part in missing[account] if part is not None)
        else:
            reason = "work" if account in work else f"{outcome} {_variant(why)[0]}"
        yield {
            "round": report.object("scope").whole("round"),
            "account": account,
            "score_nano": None if score is None else score.nano("score_nano"),
            "error_nano": None if score is None else score.whole("error_nano"),
            "increment_nano": 0 if line is None else line.whole("increment", 0, U128_MAX),
            "payout_units": 0 if line is None else line.amount("payout"),
            "floor_units": 0 if line is None else line.amount("floor"),
            "infrastructure_units": work.get(account, 0),
            "debit_units": 0 if line is None else line.amount("debit"),
            "reason": reason,
        }
