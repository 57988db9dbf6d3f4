"""The formulas of docs/lease-protocol.md: the arithmetic of orders, commitments, awards, draws and pay."""

from blake3 import blake3

PARTS = 10**6


def h(context, *parts):
    return blake3(b"".join(parts), derive_key_context=f"florin v1 {context}").digest()


def raw(text):
    return bytes.fromhex(text.removeprefix("0x"))


def u32(number):
    return number.to_bytes(4, "little")


def u64(number):
    return number.to_bytes(8, "little")


def u128(number):
    return number.to_bytes(16, "little")


def units(amount):
    """The base units of an amount in florins."""
    whole, _, part = amount.partition(".")
    return int(whole + part.ljust(18, "0"))


def ceil(number, divisor):
    return -(-number // divisor)


class Order:
    """The numbers of an order, and the arithmetic on them."""

    def __init__(self, schema, order):
        self.json, self.id = order, h("compute order", schema.encode("ComputeOrder", order))
        self.segments, self.steps = order["segments"], order["steps"]
        self.price_max, self.step_us_max = units(order["price_max"]), order["step_us_max"]
        self.deposits = {name: units(amount) for name, amount in order["deposits"].items()}
        self.windows, audit = order["windows"], order["audit"]
        self.share, self.auditors, self.colluding = audit["share"], audit["auditors"], audit["colluding"]
        self.fee = units(audit["fee"])

    def audited(self, delivered):
        return min(ceil(delivered * self.share, PARTS), max(delivered // 2, min(delivered, 1)))

    def audit_budget(self):
        return self.fee * self.audited(self.segments) * self.auditors

    def bounty(self):
        return self.fee * PARTS // self.share

    def detection(self):
        colluding = PARTS
        for _ in range(self.auditors):
            colluding = ceil(colluding * self.colluding, PARTS)
        return self.audited(self.segments) * (PARTS - colluding) // self.segments

    def stake_min(self):
        d = self.detection()
        least = self.price_max * (PARTS - d) // (self.segments * d) + 1
        return least + self.deposits["default_fine"] + self.bounty() + self.audit_budget()

    def segment_ms(self, step_us):
        return ceil(step_us * self.steps * self.windows["slack"], 10**9) + self.windows["segment"]

    def ruling_windows(self):
        return 3 if self.json["data_class"] == "private" else 1

    def duration_ms(self):
        w, answers = self.windows, 2 * self.steps.bit_length() + self.ruling_windows()
        disputes = self.audited(self.segments) * self.auditors * answers
        phases = w["bid"] + w["reveal"] + 1_024 * w["fund"] + w["draw"] + 6 * w["audit"]
        return phases + self.segments * self.segment_ms(self.step_us_max) + w["answer"] * disputes

    def price(self, bid):
        return ceil(units(bid["per_second"]) * self.segments * self.steps * bid["times"][0], 10**6)


def time_of(bid, devices):
    """The time of a step on a number of devices; 0 for a missing one."""
    return bid["times"][devices - 1] if 0 < devices <= len(bid["times"]) else 0


def bid_commitment(order, bidder, bid, salt):
    price, devices = u128(units(bid["per_second"])), bid["devices"]
    times = u64(time_of(bid, devices)) + u64(time_of(bid, 1))
    return h("compute bid", order, raw(bidder), raw(salt), price, u32(devices), times)


def end_commitment(kind, order, account, segment, end, salt):
    """A leaf of the provider (`leaf`), or the sealed end of an auditor (`end`)."""
    return h(f"compute {kind}", order, raw(account), u32(segment), raw(salt), raw(end))


def removed(order, bids):
    """The bids that cannot win."""
    is_vain = lambda bid: order.price(bid) > order.price_max or time_of(bid, bid["devices"]) > order.step_us_max
    return sorted((bidder for bidder, bid in bids.items() if is_vain(bid)), key=raw)


def award(order, bids):
    """The award among bids that can win."""
    offers = {bidder: (order.price(bid), time_of(bid, bid["devices"])) for bidder, bid in bids.items()}
    ranking = sorted(offers, key=lambda bidder: (offers[bidder][0] * offers[bidder][1], raw(bidder)))
    if not ranking:
        return None
    second = offers[ranking[1]] if len(ranking) > 1 else (order.price_max, order.step_us_max)
    (price, step_us), devices = offers[ranking[0]], bids[ranking[0]]["devices"]
    return {
        "provider": ranking[0], "devices": devices, "step_us": step_us,
        "own_price": str(price), "second_price": str(second[0]), "second_us": second[1],
    }


def draw(order, leaves, beacon, accounts):
    """The seed, the segments that were skipped, and the audits of the drawn ones."""
    seed, count = h("compute draw", order.id, raw(beacon), *map(raw, leaves)), len(leaves)
    drawn, skipped = set(), []
    for segment in sorted(range(count), key=lambda g: h("compute segment ticket", seed, u32(g))):
        if len(drawn) == order.audited(count):
            break
        # On a ring of one segment this is the segment itself, which is not drawn yet.
        if {(segment - 1) % count, (segment + 1) % count} & drawn:
            skipped.append(segment)
        else:
            drawn.add(segment)
    audits = []
    for segment in sorted(drawn):
        ticket = lambda account: h("compute auditor ticket", seed, u32(segment), raw(account))
        queue = sorted(accounts, key=ticket)
        asked, others = queue[: order.auditors], queue[order.auditors :]
        audits.append({
            "segment": segment, "asked": sorted(asked, key=raw), "reserve": others[: 3 * order.auditors],
        })
    return seed, sorted(skipped), audits


def pay(order, won, began, ended, delivered):
    """The measured microseconds of a step, the price, and the pay."""
    measured, steps = 0, delivered * order.steps
    if delivered:
        measured = 1_000 * max(0, ended - began - order.windows["segment"] * delivered) // steps
    step_us = max(won["step_us"], measured, 1)
    price = min(int(won["second_price"]) * won["second_us"] // step_us, order.price_max)
    return measured, price, price * delivered // order.segments
