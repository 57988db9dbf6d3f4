"""Encodes any value of the protocol in borsh, from its JSON form and schema.json alone: no type is written here.

borsh: little-endian integers, u32 lengths, enums by index, fields in order, maps ascending by encoded key.
"""

import json
import pathlib
import re
from decimal import Decimal

INTEGER = re.compile(r"([iu])(8|16|32|64|128)")


def split(text):
    """The parts of a list at its top level: `Address, Vec<(A, B)>`."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "<([") - (char in ">)]")
        if char in ",;" and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()]


def integer(kind, value):
    sign, bits = INTEGER.fullmatch(kind).groups()
    return int(value).to_bytes(int(bits) // 8, "little", signed=sign == "i")


class Schema:
    def __init__(self, path):
        schema = json.loads(pathlib.Path(path).read_text())
        self.types, self.actions = schema["types"], schema["actions"]
        self.messages = {message["kind"]: message for message in schema["messages"]}
        self.constants = schema["constants"]
        self.used = set()  # The variants that were encoded: (type, name).

    def encode(self, kind, value):
        """The canonical bytes of a value of a type: `u32`, `Vec<(Address, Digest)>`, `TaskSpec`."""
        if kind in self.types:
            return self.named(kind, self.types[kind], value)
        if INTEGER.fullmatch(kind):
            return integer(kind, value)
        if kind == "bool":
            assert value in (True, False)
            return bytes([value])
        if kind == "String":
            raw = value.encode()
            return integer("u32", len(raw)) + raw
        if kind.startswith("("):
            parts = split(kind[1:-1])
            return b"".join(self.encode(k, v) for k, v in zip(parts, value, strict=True))
        if kind.startswith("["):
            item, length = split(kind[1:-1])
            assert len(value) == int(length), f"{kind} of {len(value)} items"
            return b"".join(self.encode(item, each) for each in value)
        outer, inner = kind.rstrip(">").split("<")[0], kind[kind.index("<") + 1 : -1]
        if outer == "Option":
            return b"\x00" if value is None else b"\x01" + self.encode(inner, value)
        if outer == "Vec":
            return integer("u32", len(value)) + b"".join(self.encode(inner, each) for each in value)
        assert outer == "BTreeMap", kind
        key, content = split(inner)
        pairs = sorted((self.encode(key, k), self.encode(content, v)) for k, v in value.items())
        return integer("u32", len(pairs)) + b"".join(k + v for k, v in pairs)

    def named(self, name, shape, value):
        match shape["kind"]:
            case "bytes":
                raw = bytes.fromhex(value.removeprefix("0x"))
                assert len(raw) == shape["length"], f"{name}: {len(raw)} bytes"
                return raw
            case "newtype":
                return self.encode(shape["type"], value)
            case "decimal":
                whole, _, part = value.partition(".")
                return integer(shape["type"], whole + part.ljust(shape["places"], "0"))
            case "decimal_float":
                sign, digits, exponent = Decimal(value).normalize().as_tuple()
                mantissa = int("".join(map(str, digits))) * (-1 if sign else 1)
                return self.fields(shape, {"mantissa": mantissa, "exponent": exponent})
            case "struct":
                unknown = set(value) - {field for field, _ in shape["fields"]}
                assert not unknown, f"{name} has unknown fields {unknown}"
                return self.fields(shape, value)
            case "enum":
                return self.variant(name, shape, value)
        raise ValueError(f"{name} has an unknown kind")

    def fields(self, shape, value):
        raw = b""
        for field, kind in shape["fields"]:
            if field not in value and not kind.startswith("Option<"):
                raise KeyError(field)
            raw += self.encode(kind, value.get(field))
        return raw

    def variant(self, name, shape, value):
        tag = shape["json_tag"]
        if tag is not None:
            chosen, content = value[tag], value
        elif isinstance(value, str):
            chosen, content = value, None
        else:
            [(chosen, content)] = value.items()
        variant = next(each for each in shape["variants"] if each["name"] == chosen)
        self.used.add((name, chosen))
        raw = integer("u8", variant["index"])
        if "content" in variant:
            if tag is not None:
                # The tag stands among the fields of the content.
                content = {field: own for field, own in value.items() if field != tag}
            return raw + self.encode(variant["content"], content)
        if "fields" in variant:
            return raw + self.fields(variant, content)
        assert tag is not None or content is None, f"{name} {chosen} has no content"
        return raw

    def unused(self):
        """The variants of enums that no value has had."""
        every = {
            (name, variant["name"])
            for name, shape in self.types.items() if shape["kind"] == "enum"
            for variant in shape["variants"]
        }
        return sorted(every - self.used)

    def eip712(self, kind):
        """The EIP-712 structure that a wallet signs for a kind of message: its name and members."""
        name, members = re.search(r"(\w+)\((.*)\)", self.messages[kind]["signed_by"]).groups()
        pairs = (member.split(" ") for member in members.split(","))
        return name, [{"name": field, "type": kind} for kind, field in pairs]

    def summaries(self, action):
        """The sentences that a wallet may display for an action."""
        name, content = (action, {}) if isinstance(action, str) else next(iter(action.items()))
        leaves = dict(leaves_of(content))
        for template in self.actions:
            if template["action"] == name:
                text = re.sub(r"\{(\w+):8\}", lambda m: leaves[m[1]][:8], template["summary"])
                yield template["when"], re.sub(r"\{(\w+)\}", lambda m: shown(leaves[m[1]]), text)


def shown(value):
    """The text of a field; of a list of structures, their fields with commas between the structures."""
    if isinstance(value, list):
        return ", ".join(" ".join(str(each) for each in item.values()) for item in value)
    return str(value)


def leaves_of(value):
    for field, each in value.items():
        if isinstance(each, dict):
            yield from leaves_of(each)
        else:
            yield field, each
