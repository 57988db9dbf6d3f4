"""A lease as the fold of its record (docs/lease-protocol.md, "The record")."""

from eth_account import Account
from eth_account.messages import encode_typed_data

from lease_formulas import Order, award, bid_commitment, draw, end_commitment, h, pay, raw, removed

ESCROW, BID_BOND, STAKE, AUDIT_BOND, OWED, RETURNED, FORFEITED = range(7)


class Books:
    """The balances of a lease, by kind and account."""

    def __init__(self):
        self.balances, self.deposited = {}, 0

    def deposit(self, kind, account, amount):
        self.deposited += amount
        self.balances[kind, account] = self.balances.get((kind, account), 0) + amount

    def move(self, source, target, amount=None):
        """Moves an amount, or all."""
        left = self.balances.get(source, 0)
        amount = left if amount is None else amount
        assert amount <= left, f"{source} has {left}, and {amount} are needed"
        self.balances[source], self.balances[target] = left - amount, self.balances.get(target, 0) + amount

    def filled(self):
        assert sum(self.balances.values()) == self.deposited, "an amount is lost"
        return {account: amount for account, amount in self.balances.items() if amount}


class Lease:
    def __init__(self, schema, view):
        self.schema, self.order, self.beacon = schema, Order(schema, view["order"]), view["beacon"]
        self.last = self.began = self.ended = view["opened"]
        self.books, self.nonces, self.dispute = Books(), {}, None
        self.sealed, self.bids, self.auditors, self.award = {}, {}, set(), None
        self.leaves, self.audits, self.replaced, self.result, self.outcome = [], [], 0, None, None
        self.private = self.order.json["data_class"] == "private"
        self.renter, self.referee = self.order.json["renter"], self.order.json["referee"]
        self.enter("bidding", self.order.windows["bid"])
        self.books.deposit(ESCROW, "", self.order.price_max + self.order.audit_budget())

    def apply(self, record):
        at, action, before = record["at"], record["action"], self.last
        assert at >= before, "the moments decrease"
        self.last = at
        if action == "resumed":
            self.resume(before)
        elif action == "expired":
            assert at > self.deadline, "the deadline has not passed"
            DEFAULTS[self.phase](self)
        elif "checkpoints" in action:
            assert at > self.deadline, "the deadline has not passed"
            self.use_checkpoints(action["checkpoints"])
        else:
            assert at <= self.deadline, "the deadline has passed"
            if "beacon" in action:
                self.draw(action["beacon"])
            else:
                self.act(**action["signed"])

    def act(self, body, signature):
        by, action = body["by"], body["action"]
        assert raw(body["order"]) == self.order.id, "another order"
        assert body["nonce"] == self.nonces.get(by, 0), "a wrong nonce"
        self.nonces[by] = body["nonce"] + 1
        [(name, content)] = [(action, None)] if isinstance(action, str) else action.items()
        phase, summary, perform = ACTIONS[name]
        assert self.signer(summary, body, signature) == by, "the signature is of another account"
        assert phase == self.phase, f"{name} in {self.phase}"
        perform(self, by, content)

    def signer(self, summary, body, signature):
        market = self.order.json["market"]
        domain = {"name": "Florin", "version": "1", "chainId": market["chain"], "salt": raw(market["genesis"])}
        kind, members = self.schema.eip712("lease action")
        message = {
            "order": self.order.id, "account": body["by"], "nonce": body["nonce"], "summary": summary,
            "action": h("lease action", self.schema.encode("LeaseAction", body)),
        }
        signable = encode_typed_data(domain, {kind: members}, message)
        return Account.recover_message(signable, signature=raw(signature))

    def enter(self, phase, window):
        self.phase, self.deadline = phase, self.last + window

    def enter_segment(self):
        self.enter("running", self.order.segment_ms(self.award["step_us"]))

    def resume(self, before):
        if self.phase == "over":
            return
        self.deadline = max(self.deadline, self.last + max(0, self.deadline - before))
        if self.phase == "running":
            outage = self.last - before
            self.began, self.ended = (min(at + outage, self.last) for at in (self.began, self.ended))

    # Bids.

    def seal_bid(self, by, sealed):
        assert by not in {self.renter, self.referee, *self.auditors, *self.sealed}, "no bidder"
        self.sealed[by] = sealed
        self.books.deposit(BID_BOND, by, self.order.deposits["bid_bond"])

    def join_audit(self, by, _):
        may_join = by == self.renter if self.private else by not in {self.renter, self.referee, *self.sealed}
        assert may_join and by not in self.auditors, "no auditor"
        self.auditors.add(by)
        self.books.deposit(AUDIT_BOND, by, self.order.deposits["audit_bond"])

    def end_bidding(self):
        if self.sealed and len(self.auditors) >= self.order.auditors:
            self.enter("revealing", self.order.windows["reveal"])
        else:
            self.leave_unawarded()

    def open_bid(self, by, opened):
        bid = opened["bid"]
        assert by not in self.bids and 1 <= bid["devices"] <= len(bid["times"]), "an invalid bid"
        commitment = bid_commitment(self.order.id, by, bid, opened["salt"])
        assert commitment.hex() == self.sealed[by], "another bid was sealed"
        self.bids[by] = bid
        if len(self.bids) == len(self.sealed):
            self.end_revealing()

    def end_revealing(self):
        for bidder in [*(set(self.sealed) - set(self.bids)), *removed(self.order, self.bids)]:
            self.remove_bid(bidder)
        self.award_next()

    def remove_bid(self, bidder):
        self.books.move((BID_BOND, bidder), (FORFEITED, bidder))
        self.bids.pop(bidder, None)

    def award_next(self):
        self.award = award(self.order, self.bids)
        if self.award:
            self.enter("funding", self.order.windows["fund"])
        else:
            self.leave_unawarded()

    def end_funding(self):
        self.remove_bid(self.award["provider"])
        self.award_next()

    def return_bid_bonds(self):
        for bidder in self.sealed:
            self.books.move((BID_BOND, bidder), (RETURNED, bidder))

    def leave_unawarded(self):
        self.return_bid_bonds()
        self.close("unawarded")

    # Segments.

    def require_provider(self, by):
        assert by == self.award["provider"], "not the provider"

    def fund(self, by, _):
        self.require_provider(by)
        self.books.deposit(STAKE, by, self.order.deposits["stake"])
        self.return_bid_bonds()
        self.began = self.ended = self.last
        self.enter_segment()

    def deliver(self, by, delivery):
        self.require_provider(by)
        assert delivery["segment"] == len(self.leaves), "not the next segment"
        self.leaves.append(delivery["leaf"])
        self.ended = self.last
        if len(self.leaves) == self.order.segments:
            self.enter("delivered", self.order.windows["draw"])
        else:
            self.enter_segment()

    def end_running(self):
        provider = self.award["provider"]
        fine = min(self.order.deposits["default_fine"], self.books.balances[STAKE, provider])
        self.books.move((STAKE, provider), (FORFEITED, provider), fine)
        if self.leaves:
            self.enter("delivered", self.order.windows["draw"])
        else:
            self.pay()

    def draw(self, beacon):
        assert self.phase == "delivered", f"a beacon in {self.phase}"
        assert h("compute beacon", self.order.id, raw(beacon)).hex() == self.beacon, "another beacon"
        _, _, audits = draw(self.order, self.leaves, beacon, self.auditors)
        self.audits = [audit | {"sealed": {}, "ends": {}, "start": None, "end": None} for audit in audits]
        self.enter("serving", self.order.windows["audit"])

    def end_delivered(self):
        self.enter("opening", self.order.windows["audit"])

    # Audits.

    def audit(self, segment):
        return next(audit for audit in self.audits if audit["segment"] == segment)

    def serve(self, by, served):
        self.require_provider(by)
        audit, start = self.audit(served["segment"]), served["start"]
        assert audit["start"] is None, "the start is served"
        assert served["segment"] > 0 or start == self.order.json["start"], "not the start of the order"
        audit["start"] = start
        if all(audit["start"] for audit in self.audits):
            self.enter("auditing", self.order.windows["audit"])

    def end_serving(self):
        self.slash(next(audit["segment"] for audit in self.audits if audit["start"] is None))

    def seal_end(self, by, end):
        audit = self.audit(end["segment"])
        assert by in audit["asked"] and by not in audit["sealed"], "not asked"
        audit["sealed"][by] = end["sealed"]
        if self.is_sealed():
            self.enter("opening", self.order.windows["audit"])

    def is_sealed(self):
        return all(set(audit["sealed"]) == set(audit["asked"]) for audit in self.audits)

    def end_auditing(self):
        lost = [[own for own in audit["asked"] if own not in audit["sealed"]] for audit in self.audits]
        for auditor in {auditor for silent in lost for auditor in silent}:
            self.forfeit_audit_bond(auditor)
        for audit, silent in zip(self.audits, lost):
            audit["asked"] = list(audit["sealed"])
            if self.replaced < 3:
                reserve = [auditor for auditor in audit["reserve"] if auditor in self.auditors]
                audit["asked"] += reserve[: len(silent)]
                audit["reserve"] = reserve[len(silent) :]
        self.replaced += 1
        self.enter("opening" if self.is_sealed() else "auditing", self.order.windows["audit"])

    def forfeit_audit_bond(self, auditor):
        self.auditors.discard(auditor)
        self.books.move((AUDIT_BOND, auditor), (FORFEITED, auditor))

    def open_leaf(self, by, leaf):
        self.require_provider(by)
        segment, secret = leaf["segment"], leaf["secret"]
        is_last, drawn = segment == len(self.leaves) - 1, [a for a in self.audits if a["segment"] == segment]
        assert drawn or (is_last and self.result is None), "a leaf that nothing asks for"
        self.check_leaf(segment, secret["end"], secret["salt"])
        for audit in drawn:
            assert audit["end"] is None, "the leaf is open"
            if segment > 0:
                self.check_leaf(segment - 1, audit["start"], leaf["salt_before"])
            audit["end"] = secret["end"]
        if is_last:
            self.result = secret["end"]
        self.judge_if_open()

    def check_leaf(self, segment, end, salt):
        leaf = end_commitment("leaf", self.order.id, self.award["provider"], segment, end, salt)
        assert leaf.hex() == self.leaves[segment], f"leaf {segment} is of another end"

    def open_end(self, by, opened):
        audit, secret = self.audit(opened["segment"]), opened["secret"]
        end = end_commitment("end", self.order.id, by, opened["segment"], secret["end"], secret["salt"])
        assert by not in audit["ends"] and end.hex() == audit["sealed"][by], "another end was sealed"
        audit["ends"][by] = secret["end"]
        self.judge_if_open()

    def judge_if_open(self):
        is_open = lambda audit: audit["end"] and set(audit["ends"]) == set(audit["sealed"])
        if self.result and all(map(is_open, self.audits)):
            self.judge()

    def end_opening(self):
        closed = [audit["segment"] for audit in self.audits if audit["end"] is None]
        if closed or self.result is None:
            self.slash(closed[0] if closed else len(self.leaves) - 1)
            return
        for auditor in {own for audit in self.audits for own in audit["sealed"] if own not in audit["ends"]}:
            self.forfeit_audit_bond(auditor)
        self.judge()

    # Checkpoints.

    def checkpoints_needed(self):
        if self.phase == "serving":
            return {audit["segment"] - 1 for audit in self.audits if audit["start"] is None} - {-1}
        if self.phase == "disputing" and self.dispute["stated"] is None:
            return {self.dispute["segment"]}
        assert self.phase == "opening", f"checkpoints in {self.phase}"
        closed = {audit["segment"] for audit in self.audits if audit["end"] is None}
        assert closed or self.result is None, "the provider owes nothing"
        last = set() if self.result else {len(self.leaves) - 1}
        return (closed | {segment - 1 for segment in closed} | last) - {-1}

    def use_checkpoints(self, checkpoints):
        assert not self.private, "checkpoints of private rows"
        assert [one["segment"] for one in checkpoints] == sorted(self.checkpoints_needed()), "other segments"
        ends = {-1: self.order.json["start"]}
        for one in checkpoints:
            self.check_leaf(one["segment"], one["secret"]["end"], one["secret"]["salt"])
            ends[one["segment"]] = one["secret"]["end"]
        if self.phase == "serving":
            for audit in (audit for audit in self.audits if audit["start"] is None):
                audit["start"] = ends[audit["segment"] - 1]
            self.enter("auditing", self.order.windows["audit"])
        elif self.phase == "disputing":
            self.enter("refereeing", self.order.ruling_windows() * self.order.windows["answer"])
        else:
            for audit in (audit for audit in self.audits if audit["end"] is None):
                assert audit["start"] == ends[audit["segment"] - 1], "another start was served"
                audit["end"] = ends[audit["segment"]]
            self.result = self.result or ends[len(self.leaves) - 1]
            self.end_opening()

    # Disputes.

    def judge(self):
        self.dispute = None
        for audit in self.audits:
            for auditor in sorted(audit["ends"], key=raw):
                if audit["ends"][auditor] != audit["end"]:
                    self.dispute = {
                        "segment": audit["segment"], "auditor": auditor, "agreed": (0, audit["start"]),
                        "differ": (self.order.steps, audit["end"], audit["ends"][auditor]), "stated": None,
                    }
                    self.await_answer()
                    return
        self.pay()

    def await_answer(self):
        is_left = self.dispute["differ"][0] - self.dispute["agreed"][0] > 1
        windows = 1 if is_left else self.order.ruling_windows()
        self.enter("disputing" if is_left else "refereeing", windows * self.order.windows["answer"])

    def answer(self, by, state):
        dispute, stated = self.dispute, self.dispute["stated"]
        assert by == (dispute["auditor"] if stated else self.award["provider"]), "not the side that is asked"
        agreed, differ = dispute["agreed"][0], dispute["differ"][0]
        middle = agreed + (differ - agreed) // 2
        if stated is None:
            dispute["stated"] = state
        elif stated == state:
            dispute |= {"agreed": (middle, state), "stated": None}
        else:
            dispute |= {"differ": (middle, stated, state), "stated": None}
        self.await_answer()

    def end_disputing(self):
        if self.dispute["stated"]:
            self.reject()
        else:
            self.slash(self.dispute["segment"])

    def reject(self):
        self.forfeit_audit_bond(self.dispute["auditor"])
        del self.audit(self.dispute["segment"])["ends"][self.dispute["auditor"]]
        self.judge()

    def rule(self, by, state):
        assert by == self.referee, "not the referee"
        _, own, theirs = self.dispute["differ"]
        if state == own:
            self.reject()
        elif state == theirs:
            self.slash(self.dispute["segment"], self.dispute["auditor"])
        else:
            self.forfeit_audit_bond(self.dispute["auditor"])
            self.slash(self.dispute["segment"])

    def end_refereeing(self):
        if self.private:
            self.reject()
        else:
            audit = self.audit(self.dispute["segment"])
            audit["ends"][self.dispute["auditor"]] = audit["end"]
            self.judge()

    # Pay.

    def pay(self):
        provider, delivered = self.award["provider"], len(self.leaves)
        _, _, owed = pay(self.order, self.award, self.began, self.ended, delivered)
        self.books.move((ESCROW, ""), (OWED, provider), owed)
        self.books.move((STAKE, provider), (RETURNED, provider))
        self.pay_fees()
        self.close("settled" if delivered == self.order.segments else {"defaulted": {"delivered": delivered}})

    def slash(self, segment, accuser=None):
        self.pay_fees()
        if accuser:
            self.books.move((ESCROW, ""), (OWED, accuser), self.order.bounty())
        provider = self.award["provider"]
        self.books.move((STAKE, provider), (FORFEITED, provider))
        self.close({"slashed": {"segment": segment}})

    def pay_fees(self):
        for auditor in (own for audit in self.audits for own in audit["ends"] if own in self.auditors):
            self.books.move((ESCROW, ""), (OWED, auditor), self.order.fee)

    def close(self, outcome):
        for auditor in self.auditors:
            self.books.move((AUDIT_BOND, auditor), (RETURNED, auditor))
        self.auditors, self.dispute, self.phase, self.outcome = set(), None, "over", outcome
        self.books.move((ESCROW, ""), (RETURNED, self.renter))


# The phase of each action, its sentence, and its effect.
ACTIONS = {
    "seal_bid": ("bidding", "a sealed bid", Lease.seal_bid),
    "join_audit": ("bidding", "joining as an auditor", Lease.join_audit),
    "open_bid": ("revealing", "opening a bid", Lease.open_bid),
    "fund": ("funding", "funding", Lease.fund),
    "deliver": ("running", "delivering a segment", Lease.deliver),
    "serve": ("serving", "serving a start", Lease.serve),
    "seal_end": ("auditing", "sealing an end", Lease.seal_end),
    "open_leaf": ("opening", "opening a leaf", Lease.open_leaf),
    "open_end": ("opening", "opening an end", Lease.open_end),
    "answer": ("disputing", "an answer in a dispute", Lease.answer),
    "rule": ("refereeing", "a ruling", Lease.rule),
}

DEFAULTS = {
    "bidding": Lease.end_bidding, "revealing": Lease.end_revealing, "funding": Lease.end_funding,
    "running": Lease.end_running, "delivered": Lease.end_delivered, "serving": Lease.end_serving,
    "auditing": Lease.end_auditing, "opening": Lease.end_opening, "disputing": Lease.end_disputing,
    "refereeing": Lease.end_refereeing,
}
