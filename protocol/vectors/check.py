"""Checks the golden vectors without any Florin code: its own borsh encoder; blake3, ed25519 and EIP-712 from PyPI.

usage: check.py FOLDER        prints one line per vector; exit code 1 if any differs, or if none was read
"""

import json
import math
import pathlib
import re
import struct
import sys
from decimal import Decimal

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from eth_abi import encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils import keccak

from rounds import check_confirmation, check_gap, check_gap_rule, check_rounds

# --- borsh, from its specification: little-endian integers, u32 lengths, enums by index, fields in order. ---


def uint(size):
    return lambda v: int(v).to_bytes(size, "little")


def sint(size):
    return lambda v: int(v).to_bytes(size, "little", signed=True)


u8, u16, u32, u64, u128 = (uint(n) for n in (1, 2, 4, 8, 16))
i8, i64, i128 = sint(1), sint(8), sint(16)


def boolean(v):
    return b"\x01" if v else b"\x00"


def hexed(size):
    def encode(v):
        raw = bytes.fromhex(v.removeprefix("0x"))
        assert len(raw) == size, (size, v)
        return raw

    return encode


address, digest, signature = hexed(20), hexed(32), hexed(64)


def text(v):
    raw = v.encode()
    return u32(len(raw)) + raw


def many(item):
    return lambda v: u32(len(v)) + b"".join(item(x) for x in v)


def option(item):
    return lambda v: b"\x00" if v is None else b"\x01" + item(v)


def pair(a, b):
    return lambda v: a(v[0]) + b(v[1])


def mapping(key, value):
    # In ascending order of the encoded keys; for addresses that is byte order.
    return lambda v: u32(len(v)) + b"".join(
        key(k) + value(v[k]) for k in sorted(v, key=lambda k: key(k))
    )


def fields(*items):
    return lambda v: b"".join(encode(v[name]) for name, encode in items)


def tagged(tag, *variants):
    """An enum whose JSON form is an object with the variant's name under the key `tag`."""

    def encode(v):
        names = [name for name, _ in variants]
        index = names.index(v[tag])
        return u8(index) + variants[index][1](v)

    return encode


def named(*variants):
    """An enum whose JSON form is the variant's name, or an object with that name as its only key."""

    def encode(v):
        name, content = (v, None) if isinstance(v, str) else next(iter(v.items()))
        index = [n for n, _ in variants].index(name)
        inner = variants[index][1]
        return u8(index) + (inner(content) if inner else b"")

    return encode


def decimal(places, size):
    """A decimal string, encoded as an integer number of units of its last place."""

    def encode(v):
        whole, _, part = v.partition(".")
        return int(whole + part.ljust(places, "0")).to_bytes(size, "little")

    return encode


amount, micro = decimal(18, 16), decimal(6, 8)


def decimal_float(v):
    sign, digits, exponent = Decimal(v).normalize().as_tuple()
    mantissa = int("".join(map(str, digits))) * (-1 if sign else 1)
    return i64(mantissa) + i8(exponent)


# --- the messages, as in docs/protocol.md ---

market = fields(("chain", u64), ("genesis", digest))
scope = fields(("market", market), ("task", digest), ("round", u32))
model = tagged(
    "kind",
    ("softmax", fields(("inputs", u32), ("classes", u32))),
    ("mlp", fields(("inputs", u32), ("hidden", many(u32)), ("classes", u32))),
    (
        "cnn",
        fields(
            ("channels", u32), ("height", u32), ("width", u32),
            ("filters", lambda v: u32(v[0]) + u32(v[1])), ("hidden", u32), ("classes", u32),
        ),
    ),
)
number_encoding = fields(
    ("offset", decimal_float), ("factor", decimal_float), ("fill", option(decimal_float))
)
column_encoding = fields(
    ("name", text),
    (
        "kind",
        named(
            ("numeric", fields(("number", number_encoding), ("missing_indicator", boolean))),
            ("categorical", fields(("categories", many(text)))),
            ("ignored", None),
        ),
    ),
)
row_encoding = fields(
    ("class_names", many(text)),
    ("features", named(("uniform", number_encoding), ("columns", many(column_encoding)))),
)
preprocessing_rules = fields(
    ("norm_scaling", named(("none", None), ("median", None))),
    ("near_duplicates", named(("accept", None), ("reject", None))),
    ("weight_cap", u16),
)
aggregation = tagged(
    "rule",
    ("mean", fields()),
    ("median", fields()),
    ("trimmed_mean", fields(("trim", micro))),
    ("krum", fields(("byzantine", u32))),
    ("clipped_mean", fields()),
)
update_format = tagged(
    "kind",
    ("f32", fields()),
    ("bf16", fields()),
    ("int8", fields()),
    ("top_k", fields(("permille", u16))),
)
task = fields(
    ("version", u16), ("market", market), ("buyer", address), ("coordinator", address),
    ("arbiter", address), ("name", text), ("salt", u64), ("model", model),
    ("base_model", digest),
    ("data", fields(("width", u32), ("classes", u32), ("encoding", option(row_encoding)))),
    ("holdout", fields(("root", digest), ("rows", u32), ("rows_per_round", u32))),
    (
        "training",
        fields(
            ("epochs", u32), ("batch", u32), ("learning_rate", micro), ("momentum", micro),
            ("weight_decay", micro), ("clip_gradient", micro), ("fedprox", micro),
        ),
    ),
    (
        "rounds",
        fields(
            ("count", u32), ("cohort_min", u32), ("cohort_target", u32), ("over_selection", u32),
            ("enrol_ms", u64), ("train_ms", u64), ("reveal_ms", u64), ("value_ms", u64),
            ("stall_ms", u64), ("abandoned_max", u32), ("format", update_format), ("delta_norm_max", micro),
            ("aggregation", aggregation), ("preprocessing", preprocessing_rules),
            ("baseline_epochs", u32),
        ),
    ),
    ("estimator", tagged("kind", ("path", fields(("nodes", u8), ("cross_check_pairs", u8))))),
    (
        "budget",
        fields(
            ("data", amount), ("infrastructure", amount), ("per_nat_max", amount),
            ("floor_share", micro), ("confidence_z", micro), ("bond_min", amount), ("bond_per_row", amount),
            ("debit_max", amount), ("stake_min", amount), ("per_unit", amount),
            ("challenge_ms", u64), ("unbond_ms", u64),
        ),
    ),
    ("admission", tagged(
        "kind",
        ("open", fields()), ("allow_list", fields(("accounts", many(address)))),
        ("invitation", fields()),
    )),
    ("expires", u64),
)
invitation = fields(
    ("market", market), ("task", digest), ("nonce", digest), ("account", option(address)),
    ("expires", u64), ("signature", hexed(65)),
)
enrol = fields(
    ("market", market), ("task", digest), ("sender", address),
    ("invitation", option(invitation)), ("expires", u64),
)
offer = fields(
    ("scope", scope), ("base_model", digest), ("previous_report", digest),
    ("cohort", many(address)), ("opened", u64), ("commit_by", u64), ("reveal_by", u64), ("pool", amount),
)
commit = fields(("scope", scope), ("sender", address), ("offer", digest), ("commitment", digest))
update = fields(
    ("scope", scope), ("sender", address), ("offer", digest), ("base_model", digest),
    ("rows", u64), ("update", digest), ("bytes", u64), ("salt", digest), ("expires", u64),
)
receipt = fields(
    ("scope", scope), ("sender", address), ("update", digest), ("at", u64),
    ("commit_position", u32),
)
entry = fields(
    ("sender", address), ("header", digest), ("update", digest), ("salt", digest),
    ("rows_declared", u64), ("rows_counted", u64), ("bond", amount),
    ("commit_position", u32),
)
duplicate_source = named(
    ("same_round", address), ("global_deltas", None), ("earlier_round", address)
)
duplicate_match = fields(("source", duplicate_source), ("cosine", micro))
preprocessing = fields(
    ("norm_factor", micro), ("duplicate_of", option(duplicate_match)), ("weight", u64)
)
stage = fields(
    ("estimator", named(("path", u8), ("shapley", None), ("permutations", u16))),
    ("total_nano", i64), ("gap_nano", i64), ("units", u64),
)
score = fields(
    ("account", address), ("score_nano", i64), ("error_nano", u64), ("excluded", boolean),
    ("preprocessing", preprocessing),
)
evidence = fields(
    ("derivatives_nano", many(many(i64))),
    ("cross_check", option(fields(
        ("version", u32), ("seed", u64), ("passes", u64),
        ("table", many(fields(("members", many(u16)), ("value_nano", i64)))),
        ("scores_nano", many(i64)),
    ))),
)
public_baseline = fields(
    ("rows", u32), ("loss_before_nano", i64), ("validation_loss_nano", option(i64)),
)
valuation = fields(
    ("loss_before_nano", i64), ("loss_after_nano", i64), ("total_nano", i64), ("gap_nano", i64),
    ("model_loss_nano", i64), ("stages", many(stage)), ("scores", many(score)), ("units", u64),
    ("evidence", evidence),
)
metrics = fields(
    ("rows", u32), ("correct_before", u32), ("correct_after", u32), ("loss_after_nano", i64)
)
abandon = named(
    ("too_few_updates", fields(("got", u32), ("needed", u32))), ("valuation_failed", None)
)
void = named(
    ("unresolved", None), ("no_update_remains", None), ("majority_excluded", None),
    ("no_improvement", None),
)
reason = named(
    ("paid", None), ("withheld", None), ("idle", None), ("not_helpful", None),
    ("carried_over", None), ("excluded", None),
)
line = fields(
    ("account", address), ("increment", u128), ("payout", amount), ("floor", amount),
    ("debit", amount),
    ("reason", reason),
)
infrastructure = fields(
    ("provider", address), ("record", digest), ("units", u64), ("amount", amount)
)
account_totals = fields(
    ("score_sum_nano", i128), ("variance_nano2", u128), ("paid_score_nano", u128),
    ("data", amount), ("infrastructure", amount), ("debited", amount),
)
report = fields(
    ("version", u16), ("scope", scope), ("previous_report", digest), ("offer", digest),
    ("outcome", named(("settled", None), ("void", void), ("abandoned", abandon))),
    ("base_model", digest), ("model", digest), 
    ("holdout", fields(("seed", digest), ("rows", many(u32)))),
    ("commits", many(pair(address, digest))), ("entries", many(entry)),
    ("missing", many(pair(address, named(("no_commit", None), ("no_reveal", None))))),
    ("valuation", option(valuation)), ("baseline", option(public_baseline)),
    ("metrics", option(metrics)), ("pool", amount),
    ("lines", many(line)), ("infrastructure", many(infrastructure)),
    ("final_lines", many(line)), ("account_totals", mapping(address, account_totals)),
    ("improvement_total_nano", u64), ("score_pay_total", amount), ("data_total", amount),
    ("infrastructure_total", amount), ("previous_root", digest), ("root", digest),
    ("settlement_id", digest),
)
work_order = fields(
    ("scope", scope), ("base_model", digest), ("disclosed_rows", digest),
    ("commits", many(pair(address, digest))), ("entries", many(entry)), ("due", u64),
    ("previous_models", many(digest)), ("earlier_updates", many(pair(address, digest))),
    ("earlier_rows", many(digest)),
)
work_record = fields(
    ("market", market), ("order", digest), ("provider", address),
    ("result", fields(
        ("valuation", valuation), ("baseline", option(public_baseline)), ("metrics", metrics),
        ("model", digest),
    )),
)
KINDS = {
    "task": task, "invitation": invitation, "enrol": enrol, "offer": offer, "commit": commit, "update": update,
    "receipt": receipt, "report": report, "work order": work_order, "work record": work_record,
}


def derive(context, raw):
    return blake3(raw, derive_key_context=context).hexdigest()


def check_message(v):
    raw = KINDS[v["kind"]](v["value"])
    assert raw.hex() == v["bytes"], f"bytes differ:\n  ours   {raw.hex()}\n  theirs {v['bytes']}"
    assert derive(f"florin v1 {v['kind']}", raw) == v["digest"], "digest differs"
    if "model_seed" in v:
        unset = KINDS["task"]({**v["value"], "base_model": "00" * 32})
        seed = int.from_bytes(bytes.fromhex(derive("florin v1 initial model", unset))[:8], "little")
        assert str(seed) == v["model_seed"], "the seed of the initial parameters differs"
    if "signature" in v:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(v["node_key"]))
        key.verify(bytes.fromhex(v["signature"]), bytes.fromhex(v["digest"]))
        try:
            key.verify(bytes.fromhex(v["signature"]), bytes(32))
        except InvalidSignature:
            pass
        else:
            raise AssertionError("the signature also verifies for another message")
    if v["kind"] == "report":
        check_seed(v["value"])
    if v["kind"] == "update":
        value = v["value"]
        raw = digest(value["update"]) + digest(value["salt"]) + address(value["sender"])
        assert derive("florin v1 commitment", raw) == v["commitment"], "commitment differs"


def typed(v, kind, members, message):
    domain = {
        "name": "Florin", "version": "1", "chainId": v["market"]["chain"],
        "salt": bytes.fromhex(v["market"]["genesis"]),
    }
    signable = encode_typed_data(domain, {kind: members}, message)
    from eth_account.messages import _hash_eip191_message  # the 32 bytes that are signed

    assert _hash_eip191_message(signable).hex() == v["hash"], "EIP-712 hash differs"
    signer = Account.recover_message(signable, signature=bytes.fromhex(v["wallet_signature"]))
    assert signer == v["wallet"], f"recovered {signer}"


def check_registration(v):
    members = [
        {"name": "wallet", "type": "address"}, {"name": "nodeKey", "type": "bytes32"},
        {"name": "role", "type": "string"}, {"name": "expires", "type": "uint64"},
    ]
    message = {
        "wallet": v["wallet"], "nodeKey": bytes.fromhex(v["node_key"]), "role": v["role"],
        "expires": v["expires"],
    }
    typed(v, "Registration", members, message)
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(v["node_key"]))
    key.verify(bytes.fromhex(v["node_signature"]), bytes.fromhex(v["hash"]))


def check_close_request(v):
    typed(
        v, "CloseTask", [{"name": "task", "type": "bytes32"}], {"task": bytes.fromhex(v["task"])}
    )


def check_invitation(v):
    members = [
        {"name": "task", "type": "bytes32"}, {"name": "nonce", "type": "bytes32"},
        {"name": "account", "type": "address"}, {"name": "expires", "type": "uint64"},
    ]
    account = v["account"] or "0x" + "00" * 20
    message = {
        "task": bytes.fromhex(v["task"]), "nonce": bytes.fromhex(v["nonce"]),
        "account": account, "expires": v["expires"],
    }
    typed(v, "Invitation", members, message)
    raw = invitation({**v, "signature": v["wallet_signature"]})
    assert v["text"] == "florin-invitation-" + raw.hex(), "the text form differs"


def check_apportionment(v):
    """The largest remainder method, with exact fractions."""
    from fractions import Fraction

    pool, weights = int(v["pool"]), [int(w) for w in v["weights"]]
    exact = [Fraction(pool * w, sum(weights)) for w in weights]
    parts = [int(e) for e in exact]
    order = sorted(range(len(parts)), key=lambda i: (-(exact[i] - parts[i]), i))
    for i in order[: pool - sum(parts)]:
        parts[i] += 1
    assert [str(p) for p in parts] == v["parts"], parts
    assert sum(parts) == pool


def check_seed(report):
    """Recomputes the seed of the row draw from the other fields of the report."""
    raw = scope(report["scope"]) + u64(len(report["commits"]))
    raw += b"".join(address(a) + digest(c) for a, c in report["commits"])
    raw += u64(len(report["entries"]))
    raw += b"".join(address(e["sender"]) + digest(e["salt"]) for e in report["entries"])
    assert derive("florin v1 seed", raw) == report["holdout"]["seed"], "seed differs"


def check_tree(v):
    """OpenZeppelin's standard-v1 tree over (account, paid, debited), from its specification."""
    types = ["address", "uint256", "uint256"]
    leaves = [keccak(keccak(encode(types, [a, int(p), int(d)]))) for a, p, d in v["leaves"]]
    heap = [b""] * (len(leaves) - 1) + sorted(leaves, reverse=True)
    for i in reversed(range(len(leaves) - 1)):
        heap[i] = keccak(b"".join(sorted(heap[2 * i + 1 : 2 * i + 3])))
    assert heap[0].hex() == v["root"], "root differs"
    for leaf, proof in zip(leaves, v["proofs"], strict=True):
        node = leaf
        for sibling in proof:
            node = keccak(b"".join(sorted([node, digest(sibling)])))
        assert node == heap[0], "a proof does not lead to the root"


def check_cohort(v):
    eligible = [address(a) for a in v["eligible"]]
    if v["holdout"] is not None:
        raw = digest(v["task"]) + digest(v["holdout"]) + u64(len(eligible)) + b"".join(eligible)
        assert derive("florin v1 first cohort", raw) == v["seed"], "seed differs"
    ticket = lambda a: bytes.fromhex(derive("florin v1 cohort", digest(v["seed"]) + u32(v["round"]) + a))
    drawn = sorted(sorted(eligible, key=ticket)[: v["asked"]])
    assert drawn == [address(a) for a in v["drawn"]], "drawn differs"


def check_draw(v):
    exposed = set()
    for each in v["rounds"]:
        stream = blake3(digest(each["seed"]), derive_key_context="florin v1 draw")
        left, at = [row for row in range(v["rows"]) if row not in exposed], 0
        for i in range(v["rows_per_round"]):
            n = len(left) - i
            while True:
                number = int.from_bytes(stream.digest(length=8, seek=at), "little")
                at += 8
                if number < 2**64 // n * n:
                    break
            j = i + number % n
            left[i], left[j] = left[j], left[i]
        drawn = sorted(left[: v["rows_per_round"]])
        assert drawn == each["drawn"], f"drawn {drawn}"
        exposed.update(drawn)
    assert len(exposed) == v["rows_per_round"] * len(v["rounds"])


def check_holdout(v):
    def key(context, *parts):
        return blake3(b"".join(parts), derive_key_context=f"florin v1 holdout {context}").digest()

    rows = [bytes.fromhex(row) for row in v["rows"]]
    blinds = [key("blind", digest(v["dataset_digest"]), u32(i)) for i in range(len(rows))]
    levels = [[key("row", u32(i), blinds[i], row) for i, row in enumerate(rows)]]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = [below[i : i + 2] for i in range(0, len(below), 2)]
        levels.append([key("node", *pair) if len(pair) == 2 else pair[0] for pair in pairs])
    assert levels[-1][0].hex() == v["root"], "root differs"
    raw = u32(len(v["disclosed"]))
    for index in v["disclosed"]:
        places = [(level, (index >> up) ^ 1) for up, level in enumerate(levels[:-1])]
        proof = [level[at] for level, at in places if at < len(level)]
        raw += u32(index) + blinds[index] + u32(len(rows[index])) + rows[index]
        raw += u32(len(proof)) + b"".join(proof)
    assert raw.hex() == v["bytes"], "the bytes of the disclosed rows differ"
    assert blake3(raw).hexdigest() == v["digest"], "digest differs"


MISSING = {"", "?", "NA", "N/A", "NaN", "nan", "NULL", "null", "<NA>"}
NUMBER = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?")


def cell(raw):
    """None, a finite float or a text."""
    raw = raw.strip(" \t\n\r\f")
    if raw in MISSING:
        return None
    if NUMBER.fullmatch(raw) and math.isfinite(float(raw)):
        return float(raw)
    return raw


def position(value, names):
    """The first name that is the same text or the same number."""
    return next((i for i, name in enumerate(names) if value == cell(name)), None)


def check_encoding(v):
    """Encodes the cells of a table in binary64, with one rounding to binary32."""

    def feature(number, value):
        value = float(number["fill"]) if value is None else value
        return (value - float(number["offset"])) * float(number["factor"])

    for cells, expected in zip(v["cells"], v["rows"], strict=True):
        row = dict(zip(v["header"], map(cell, cells), strict=True))
        features = []
        for column in v["encoding"]["features"]["columns"]:
            kind, value = column["kind"], row[column["name"]]
            if "numeric" in kind:
                features.append(feature(kind["numeric"]["number"], value))
                if kind["numeric"]["missing_indicator"]:
                    features.append(float(value is None))
            elif "categorical" in kind:
                names = kind["categorical"]["categories"]
                hot = None if value is None else position(value, names)
                features += [float(i == hot) for i in range(len(names))]
        label = position(row[v["label"]], v["encoding"]["class_names"])
        raw = struct.pack(f"<{len(features)}fI", *features, label)
        assert raw.hex() == expected, f"row {cells}: ours {raw.hex()}, theirs {expected}"


CHECKS = {
    "messages": check_message, "registrations": check_registration,
    "close_requests": check_close_request, "invitations": check_invitation, "apportionments": check_apportionment,
    "trees": check_tree, "draws": check_draw, "cohorts": check_cohort,
    "holdouts": check_holdout,
    "encodings": check_encoding, "gaps": check_gap, "gap_rules": check_gap_rule,
    "confirmations": check_confirmation, "rounds": check_rounds,
}


def main(folder):
    done = 0
    for name, check in CHECKS.items():
        for vector in json.loads((folder / f"{name}.json").read_text()):
            label = f"{name}: {vector['name']}"
            try:
                check(vector)
            except (AssertionError, InvalidSignature, KeyError, ValueError) as error:
                print(f"DIFFERS  {label}\n{type(error).__name__}: {error}")
                return 1
            print(f"agrees   {label}")
            done += 1
    print(f"{done} vectors agree")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
