"""Orders and leases of compute: recomputes leases.json, and folds whole_leases.json and docs/lease-example.json."""

import json
import pathlib

from lease_bytes import LeaseBytes
from lease_fold import Lease
from lease_formulas import Order, award, bid_commitment, draw, end_commitment, h, pay, raw, removed

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def expected_order(order, v):
    life = order.duration_ms() + 86_400_000
    return {
        "id": order.id.hex(), "audited": [order.audited(n) for n in v["delivered"]],
        "audit_budget": str(order.audit_budget()), "bounty": str(order.bounty()),
        "detection": order.detection(), "stake_min": str(order.stake_min()),
        "segment_ms": [order.segment_ms(us) for us in v["step_us"]], "duration_ms": order.duration_ms(),
        "infrastructure": str(order.price_max + order.audit_budget()),
        "debit_max": str(max(order.deposits[name] for name in ("bid_bond", "stake", "audit_bond"))),
        "unbond_ms": life + 2 * v["challenge_ms"] + 600_000,
        # At most 30 days, because of unbond_ms.
        "expires": v["now"] + life,
    }


def expected_draw(order, v):
    seed, skipped, audits = draw(order, v["leaves"], v["beacon"], v["accounts"])
    return {"seed": seed.hex(), "skipped": skipped, "audits": audits}


def expected_award(order, v):
    prices = {bidder: order.price(bid) for bidder, bid in v["bids"].items()}
    vain = removed(order, v["bids"])
    left = {bidder: bid for bidder, bid in v["bids"].items() if bidder not in vain}
    return {
        "prices": {bidder: str(price) if price < 2**128 else None for bidder, price in prices.items()},
        "removed": vain, "award": award(order, left),
    }


def expected_pay(order, v):
    measured, price, own = pay(order, v["award"], v["began"], v["ended"], v["delivered"])
    return {"measured_us": measured, "price": str(price), "pay": str(own)}


def commitment(digest):
    return {"commitment": digest.hex()}


def expected_end(order, v):
    secret = v["secret"]
    return commitment(end_commitment(v["kind"], order.id, v["account"], v["segment"], secret["end"], secret["salt"]))


EXPECTED = {
    "bid": lambda order, v: commitment(bid_commitment(order.id, v["bidder"], v["bid"], v["salt"])),
    "beacon": lambda order, v: commitment(h("compute beacon", order.id, raw(v["beacon"]))),
    "leaf": expected_end, "end": expected_end, "draw": expected_draw, "award": expected_award,
    "pay": expected_pay, "order": expected_order,
}


def check(ours, theirs):
    differ = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    assert not differ, "\n".join(f"{name}: ours {ours.get(name)}, theirs {theirs.get(name)}" for name in differ)


def check_lease_vector(schema, v):
    """A formula of the page."""
    check(EXPECTED[v["kind"]](Order(schema, v["order"]), v), v["expected"])


def check_whole_lease(schema, v):
    """A lease from its record, which may stand in a file of the documentation with view and settlement."""
    example = json.loads((DOCS / v["file"]).read_text()) if "file" in v else None
    opening, records = (example["view"], example["records"]) if example else (v, v["records"])
    lease, states = Lease(schema, opening), []
    for record in records:
        lease.apply(record)
        states.append(LeaseBytes(lease).digest().hex())
    end = LeaseBytes(lease)
    check({
        "bytes": end.state().hex(), "states": states, "settlement": end.settlement(),
        "totals": [[account, str(paid), str(debited)] for account, (paid, debited) in end.totals().items()],
    }, v["expected"])
    if example:
        check(end.settlement(), example["settlement"])
        view = view_of(lease) | {"records": len(records)}
        check(view, {name: opening[name] for name in view})


def view_of(lease):
    """The fields of a coordinator's view that follow from the record."""
    return {
        "id": lease.order.id.hex(), "phase": lease.phase, "deadline": lease.deadline,
        "provider": lease.award["provider"], "delivered": len(lease.leaves), "outcome": lease.outcome,
    }
