"""Checks the golden vectors without any Florin code: its own borsh encoder (schema.py), with blake3, ed25519 and
EIP-712 from PyPI.

usage: check.py FOLDER        prints one line per vector; exit code 1 if any differs, or if none was read
"""

import json
import math
import pathlib
import re
import struct
import sys

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from eth_account import Account
from eth_account.messages import encode_typed_data

from duplicates import check_earlier_updates
from images import check_image
from leases import check_lease_vector, check_whole_lease
from repeats import check_repeats
from rounds import check_confirmation, check_gap, check_gap_rule, check_rounds
from schema import Schema
from selection import check_selection
from trees import claim_leaf, claim_root, parent
from valuation import check_cross_check_vector, check_valuation_vector

SCHEMA = Schema(pathlib.Path(__file__).parent / "schema.json")


def encoder(kind):
    return lambda value: SCHEMA.encode(kind, value)


u32, u64, address, digest = (encoder(kind) for kind in ("u32", "u64", "Address", "Digest"))


def derive(context, raw):
    return blake3(raw, derive_key_context=context).hexdigest()


def check_message(v):
    message = SCHEMA.messages[v["kind"]]
    kind = v.get("type", message["type"])
    raw = SCHEMA.encode(kind, v["value"])
    assert raw.hex() == v["bytes"], f"bytes differ:\n  ours   {raw.hex()}\n  theirs {v['bytes']}"
    assert derive(message["digest_context"], raw) == v["digest"], "digest differs"
    if "model_seed" in v:
        unset = SCHEMA.encode("TaskSpec", {**v["value"], "base_model": "00" * 32})
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
    if "frame" in v:
        signed = raw + bytes.fromhex(v["signature"])
        assert signed == SCHEMA.encode("Signed<UpdateHeader>", {"body": v["value"], "signature": v["signature"]})
        assert (u32(len(signed)) + signed + b"safetensors").hex() == v["frame"], "frame differs"
    if v["kind"] == "report":
        check_seed(v["value"])
    if v["kind"] == "update":
        value = v["value"]
        raw = digest(value["update"]) + digest(value["salt"]) + address(value["sender"])
        assert derive("florin v1 commitment", raw) == v["commitment"], "commitment differs"


CLOSE_TASK = ("CloseTask", [{"name": "task", "type": "bytes32"}])


def typed(v, kind, message):
    """Checks the EIP-712 hash of a message with the schema's members, and who signed it."""
    name, members = SCHEMA.eip712(kind) if kind in SCHEMA.messages else CLOSE_TASK
    domain = {
        "name": "Florin", "version": "1", "chainId": v["market"]["chain"],
        "salt": bytes.fromhex(v["market"]["genesis"]),
    }
    signable = encode_typed_data(domain, {name: members}, message)
    from eth_account.messages import _hash_eip191_message  # the 32 bytes that are signed

    assert _hash_eip191_message(signable).hex() == v["hash"], "EIP-712 hash differs"
    signer = Account.recover_message(signable, signature=bytes.fromhex(v["wallet_signature"]))
    assert signer == v["wallet"], f"recovered {signer}"


def check_registration(v):
    message = {
        "wallet": v["wallet"], "nodeKey": bytes.fromhex(v["node_key"]), "role": v["role"],
        "expires": v["expires"],
    }
    typed(v, "registration", message)
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(v["node_key"]))
    key.verify(bytes.fromhex(v["node_signature"]), bytes.fromhex(v["hash"]))


def check_close_request(v):
    typed(v, "close task", {"task": bytes.fromhex(v["task"])})


def check_invitation(v):
    account = v["account"] or "0x" + "00" * 20
    message = {
        "task": bytes.fromhex(v["task"]), "nonce": bytes.fromhex(v["nonce"]),
        "account": account, "expires": v["expires"],
    }
    typed(v, "invitation", message)
    fields = {field: v[field] for field in ("market", "task", "nonce", "account", "expires")}
    raw = SCHEMA.encode("Invitation", {**fields, "signature": v["wallet_signature"]})
    assert v["text"] == "florin-invitation-" + raw.hex(), "the text form differs"


RECEIPT = [
    {"name": "task", "type": "bytes32"}, {"name": "round", "type": "uint64"},
    {"name": "sender", "type": "address"}, {"name": "update", "type": "bytes32"},
]


def check_receipt(v):
    """A receipt for a ledger: the domain has a chain, but no contract and no genesis."""
    value = v["value"]
    message = {
        "task": bytes.fromhex(value["task"]), "round": value["round"],
        "sender": value["sender"], "update": bytes.fromhex(value["update"]),
    }
    domain = {"name": "Florin", "version": "1", "chainId": v["chain"]}
    signable = encode_typed_data(domain, {"Receipt": RECEIPT}, message)
    from eth_account.messages import _hash_eip191_message  # the 32 bytes that are signed

    assert _hash_eip191_message(signable).hex() == v["hash"], "EIP-712 hash differs"
    signer = Account.recover_message(signable, signature=bytes.fromhex(v["wallet_signature"]))
    assert signer == v["wallet"], f"recovered {signer}"


def check_value(v):
    raw = SCHEMA.encode(v["type"], v["value"])
    assert raw.hex() == v["bytes"], f"ours {raw.hex()}, theirs {v['bytes']}"


def check_ledger(v):
    """A message of the ledger; of a transaction also the sentence and the digests that the wallet signs."""
    check_message(v)
    if v["kind"] == "block":
        return
    if v["kind"] == "stored block":
        raw = SCHEMA.encode("Vec<SignedTransaction>", v["value"]["transactions"])
        stated = v["value"]["header"]["body"]["transactions"]
        assert derive("florin v1 transactions", raw) == stated, "digest of transactions differs"
    if v["kind"] == "lease action":
        value = v["value"]
        typed(v, "lease action", {
            "order": bytes.fromhex(value["order"]), "account": value["by"], "nonce": value["nonce"],
            "summary": v["summary"], "action": bytes.fromhex(v["digest"]),
        })
        return
    if v["kind"] == "listing action":
        typed(v, "listing action", {
            "listing": bytes.fromhex(v["value"]["listing"]), "account": v["value"]["by"],
            "summary": v["summary"], "action": bytes.fromhex(v["digest"]),
        })
        return
    if "summary" not in v:
        return
    transaction = v["value"]["transaction"]
    action = SCHEMA.encode("Action", transaction["action"])
    assert derive("florin v1 action", action) == v["action_digest"], "action digest differs"
    raw = SCHEMA.encode("Transaction", transaction)
    assert derive("florin v1 transaction", raw) == v["id"], "id differs"
    sentences = [text for _, text in SCHEMA.summaries(transaction["action"])]
    assert v["summary"] in sentences, f"no template gives {v['summary']!r}: {sentences}"
    typed(v, "transaction", {
        "from": transaction["from"], "nonce": transaction["nonce"], "summary": v["summary"],
        "action": bytes.fromhex(v["action_digest"]),
    })


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
    raw = SCHEMA.encode("RoundScope", report["scope"]) + u64(len(report["commits"]))
    raw += b"".join(address(a) + digest(c) for a, c in report["commits"])
    raw += u64(len(report["entries"]))
    raw += b"".join(address(e["sender"]) + digest(e["salt"]) for e in report["entries"])
    assert derive("florin v1 seed", raw) == report["holdout"]["seed"], "seed differs"


def check_tree(v):
    leaves = [claim_leaf(account, int(paid), int(debited)) for account, paid, debited in v["leaves"]]
    root = claim_root(leaves)
    assert root.hex() == v["root"], "root differs"
    for node, proof in zip(leaves, v["proofs"], strict=True):
        for sibling in proof:
            node = parent([node, digest(sibling)])
        assert node == root, "a proof does not lead to the root"


def check_cohort(v):
    eligible = [address(a) for a in v["eligible"]]
    if v["holdout"] is not None:
        raw = digest(v["task"]) + digest(v["holdout"]) + u64(len(eligible)) + b"".join(eligible)
        assert derive("florin v1 first cohort", raw) == v["seed"], "seed differs"
    ticket = lambda a: bytes.fromhex(derive("florin v1 cohort", digest(v["seed"]) + u32(v["round"]) + a))
    drawn = sorted(sorted(eligible, key=ticket)[: v["asked"]])
    assert drawn == [address(a) for a in v["drawn"]], "drawn differs"


def check_selection_vector(v):
    check_selection(v)
    SCHEMA.encode("RoundRules", v["rules"])
    for reason in v["reasons"]:
        SCHEMA.encode("SelectionReason", reason)
    raw = SCHEMA.encode("Candidates", v["candidates"])
    assert derive("florin v1 candidates", raw) == v["candidates_digest"], "candidates_digest differs"


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
        target = v["encoding"].get("target")
        if target is None:
            label = position(row[v["label"]], v["encoding"]["class_names"])
        else:
            features.append(feature(target, row[v["label"]]))
            label = 0
        raw = struct.pack(f"<{len(features)}fI", *features, label)
        assert raw.hex() == expected, f"row {cells}: ours {raw.hex()}, theirs {expected}"


CHECKS = {
    "messages": check_message, "values": check_value, "ledger": check_ledger, "registrations": check_registration,
    "close_requests": check_close_request, "invitations": check_invitation, "receipts": check_receipt,
    "apportionments": check_apportionment,
    "trees": check_tree, "draws": check_draw, "cohorts": check_cohort, "selections": check_selection_vector,
    "holdouts": check_holdout,
    "encodings": check_encoding, "images": check_image, "gaps": check_gap, "gap_rules": check_gap_rule,
    "confirmations": check_confirmation, "rounds": check_rounds,
    "repeats": check_repeats, "valued_rounds": check_valuation_vector,
    "cross_checks": check_cross_check_vector, "earlier_updates": check_earlier_updates,
    "leases": lambda v: check_lease_vector(SCHEMA, v), "whole_leases": lambda v: check_whole_lease(SCHEMA, v),
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
    if SCHEMA.unused():
        print(f"no vector has {SCHEMA.unused()}")
        return 1
    print(f"{done} vectors agree")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
