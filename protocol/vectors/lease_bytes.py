"""The bytes of a lease, and its settlement (docs/lease-protocol.md, "The lease as bytes")."""

from lease_fold import FORFEITED, OWED
from lease_formulas import h, raw, u32, u64, u128
from trees import claim_leaf, claim_root

PHASES = [
    "bidding", "revealing", "funding", "running", "delivered", "serving", "auditing", "opening", "disputing",
    "refereeing", "over",
]


class LeaseBytes:
    def __init__(self, lease):
        self.lease, self.encode = lease, lease.schema.encode

    def digest(self):
        return h("compute lease", self.state())

    def state(self):
        lease, encode = self.lease, self.encode
        return b"".join([
            encode("ComputeOrder", lease.order.json), lease.order.id, bytes([PHASES.index(lease.phase)]),
            u64(lease.deadline), self.books(), encode("BTreeMap<Address, Digest>", lease.sealed),
            encode("BTreeMap<Address, Bid>", lease.bids), self.accounts(lease.auditors),
            optional(lease.award, self.award), encode("Vec<Digest>", lease.leaves),
            u32(len(lease.audits)), *map(self.audit, lease.audits), bytes([lease.replaced]),
            u64(lease.began), u64(lease.ended), encode("Option<Digest>", lease.result),
            optional(lease.dispute, self.dispute), optional(lease.outcome, outcome),
        ])

    def books(self):
        filled = self.lease.books.filled()
        rows = sorted((bytes([kind]) + raw(account), amount) for (kind, account), amount in filled.items())
        rows = b"".join(key + u128(amount) for key, amount in rows)
        return u128(self.lease.books.deposited) + u32(len(filled)) + rows

    def accounts(self, accounts):
        return self.encode("Vec<Address>", sorted(accounts, key=raw))

    def award(self, won):
        second = u128(int(won["second_price"])) + u64(won["second_us"])
        own = u32(won["devices"]) + u64(won["step_us"]) + u128(int(won["own_price"]))
        return raw(won["provider"]) + own + second

    def audit(self, audit):
        ends = (self.encode("BTreeMap<Address, Digest>", audit[name]) for name in ("sealed", "ends"))
        states = (self.encode("Option<Digest>", audit[name]) for name in ("start", "end"))
        reserve = self.encode("Vec<Address>", audit["reserve"])
        return b"".join([u32(audit["segment"]), self.accounts(audit["asked"]), reserve, *ends, *states])

    def dispute(self, dispute):
        kinds = {"agreed": "(u32, Digest)", "differ": "(u32, Digest, Digest)", "stated": "Option<Digest>"}
        states = b"".join(self.encode(kind, dispute[name]) for name, kind in kinds.items())
        return u32(dispute["segment"]) + raw(dispute["auditor"]) + states

    def totals(self):
        """Paid and debited of each account, ascending."""
        totals = {}
        for (kind, account), amount in self.lease.books.filled().items():
            if kind in (OWED, FORFEITED):
                totals.setdefault(account, [0, 0])[kind == FORFEITED] = amount
        return {account: totals[account] for account in sorted(totals, key=raw)}

    def settlement(self):
        """The settlement; none for a lease without totals."""
        totals = self.totals()
        if not totals:
            return None
        order = self.lease.order.id
        return {
            "task": order.hex(), "payout": h("payout", order, u32(1)).hex(), "round": 1,
            "report": self.digest().hex(), "previous_root": "00" * 32,
            "root": claim_root([claim_leaf(account, *own) for account, own in totals.items()]).hex(),
            "data_total": "0", "score_pay_total": "0", "improvement_total_nano": 0,
            "infrastructure_total": florins(sum(paid for paid, _ in totals.values())),
        }


def optional(value, encode):
    return b"\x00" if value is None else b"\x01" + encode(value)


def outcome(outcome):
    if isinstance(outcome, str):
        return bytes([["unawarded", "settled"].index(outcome)])
    [(name, fields)] = outcome.items()
    index, field = {"defaulted": (2, "delivered"), "slashed": (3, "segment")}[name]
    return bytes([index]) + u32(fields[field])


def florins(units):
    """The text of an amount in base units."""
    whole, part = divmod(units, 10**18)
    return f"{whole}.{part:018}".rstrip("0").rstrip(".")
