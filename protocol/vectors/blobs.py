"""The bytes of models, updates and disclosed rows."""

import json
import struct

from blake3 import blake3

from aggregation import round32


def shapes(model):
    """The tensors of a model: names and shapes."""
    sizes = [model["inputs"], *model.get("hidden", []), model["classes"]]
    for at, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        yield f"layer{at}.weight", [outputs, inputs]
        yield f"layer{at}.bias", [outputs]


def size_of(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def header(tensors):
    """The canonical safetensors header of (name, type, shape)."""
    entries, at = {}, 0
    for name, kind, shape in tensors:
        end = at + size_of(shape) * {"F32": 4, "U32": 4, "BF16": 2, "I8": 1}[kind]
        entries[name], at = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}, end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def numbers(raw, tensors):
    """The numbers of each tensor of a canonical file."""
    head = header(tensors)
    assert raw.startswith(head), f"the header is not {head}"
    found, at = [], len(head)
    for _, kind, shape in tensors:
        count = size_of(shape)
        if kind == "BF16":
            parts = struct.unpack_from(f"<{count}H", raw, at)
            found.append(struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(x << 16 for x in parts))))
        else:
            found.append(struct.unpack_from(f"<{count}{ {'F32': 'f', 'U32': 'I', 'I8': 'b'}[kind] }", raw, at))
        at += count * {"F32": 4, "U32": 4, "BF16": 2, "I8": 1}[kind]
    assert at == len(raw), "bytes after the last tensor"
    return found


def model_file(model, params):
    tensors = [(name, "F32", shape) for name, shape in shapes(model)]
    return header(tensors) + struct.pack(f"<{len(params)}f", *params)


def decode_model(model, raw):
    return [x for part in numbers(raw, [(n, "F32", s) for n, s in shapes(model)]) for x in part]


def decode_update(task, raw):
    model, form = task["model"], task["rounds"]["format"]
    tensors, count = list(shapes(model)), sum(size_of(shape) for _, shape in shapes(model))
    if form["kind"] in ("f32", "bf16"):
        parts = numbers(raw, [(name, form["kind"].upper(), shape) for name, shape in tensors])
        return [x for part in parts for x in part]
    if form["kind"] == "int8":
        scales = [(name + ".scale", "F32", [1]) for name, _ in tensors]
        parts = numbers(raw, scales + [(name, "I8", shape) for name, shape in tensors])
        pairs = zip(parts[: len(scales)], parts[len(scales) :])
        return [round32(x * scale) for (scale,), part in pairs for x in part]
    included = max(1, -(-count * form["permille"] // 1000))
    indices, values = numbers(raw, [("indices", "U32", [included]), ("values", "F32", [included])])
    delta = [0.0] * count
    for index, value in zip(indices, values):
        delta[index] = value
    return delta


def disclosed_rows(task, raw):
    """The rows of the round, each verified against the task's root: (features, label)."""
    def take(form):
        nonlocal at
        found = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return found[0]

    def key(context, *parts):
        return blake3(b"".join(parts), derive_key_context=f"florin v1 holdout {context}").digest()

    at, rows = 0, []
    for _ in range(take("I")):
        index, blind, row = take("I"), take("32s"), take(f"{take('I')}s")
        proof = [take("32s") for _ in range(take("I"))]
        node, place, left = key("row", struct.pack("<I", index), blind, row), index, task["holdout"]["rows"]
        while left > 1:
            if place ^ 1 < left:
                pair = (node, proof.pop(0)) if place % 2 == 0 else (proof.pop(0), node)
                node = key("node", *pair)
            place, left = place // 2, (left + 1) // 2
        assert not proof and node.hex() == task["holdout"]["root"], f"the proof of row {index} is wrong"
        *features, _ = struct.unpack(f"<{len(row) // 4}f", row)
        rows.append((features, struct.unpack("<I", row[-4:])[0]))
    assert at == len(raw)
    return rows
