"""The fields of a response: each is checked as it is read, so that a malformed one is an error with its key."""

from __future__ import annotations

import re
from typing import Any

from florin.errors import FlorinError
from florin.http import invalid

U64_MAX, I64_MAX, U128_MAX = (1 << 64) - 1, (1 << 63) - 1, (1 << 128) - 1
# Longest text of a field, in characters.
TEXT_MAX = 4_096
DIGEST = re.compile(r"[0-9a-f]{64}")
ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
DECIMAL = re.compile(r"([0-9]{1,39})(?:\.([0-9]{1,18}))?")
WHOLE = re.compile(r"-?[0-9]{1,40}")


class Fields:
    """A JSON object of a response; `where` names it in messages."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise invalid(where, f"it is {_shown(value)}, where an object was expected")
        self._value: dict[str, Any] = value
        self.where = where

    def wrong(self, key: str, expected: str) -> FlorinError:
        return invalid(self.where, f"{key} is {_shown(self._value.get(key))}, where {expected} was expected")

    def raw(self, key: str) -> Any:
        if key not in self._value:
            raise invalid(self.where, f"it has no {key}")
        return self._value[key]

    def object(self, key: str) -> Fields:
        return Fields(self.raw(key), f"{self.where}: {key}")

    def optional(self, key: str) -> Fields | None:
        return None if self._value.get(key) is None else self.object(key)

    def items(self, key: str) -> list[Any]:
        found = self.raw(key)
        if not isinstance(found, list):
            raise self.wrong(key, "a list")
        return found

    def objects(self, key: str) -> list[Fields]:
        return [Fields(item, f"{self.where}: {key}") for item in self.items(key)]

    def pairs(self, key: str) -> list[tuple[Any, Any]]:
        found = self.items(key)
        if not all(isinstance(item, list) and len(item) == 2 for item in found):
            raise self.wrong(key, "a list of pairs")
        return [(first, second) for first, second in found]

    def text(self, key: str) -> str:
        found = self.raw(key)
        if not isinstance(found, str) or len(found) > TEXT_MAX:
            raise self.wrong(key, "a text")
        return found

    def matching(self, key: str, pattern: re.Pattern[str], expected: str) -> str:
        found = self.text(key)
        if not pattern.fullmatch(found):
            raise self.wrong(key, expected)
        return found

    def digest(self, key: str) -> str:
        return self.matching(key, DIGEST, "a digest of 64 hexadecimal digits")

    def address(self, key: str) -> str:
        return self.matching(key, ADDRESS, "an address")

    def flag(self, key: str) -> bool:
        found = self.raw(key)
        if not isinstance(found, bool):
            raise self.wrong(key, "true or false")
        return found

    def whole(self, key: str, low: int = 0, high: int = U64_MAX) -> int:
        """A whole number, as a number or as text."""
        found = self.raw(key)
        if isinstance(found, str) and WHOLE.fullmatch(found):
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}")
        return found

    def nano(self, key: str) -> int:
        return self.whole(key, -I64_MAX - 1, I64_MAX)

    def amount(self, key: str) -> int:
        """An amount in florins, in whole base units."""
        return self._decimal(key, 18)

    def micro(self, key: str) -> int:
        """A fixed-point number, in millionths."""
        return self._decimal(key, 6)

    def _decimal(self, key: str, places: int) -> int:
        found = DECIMAL.fullmatch(self.text(key))
        whole, part = found.groups() if found else ("", None)
        if not found or len(part or "") > places:
            raise self.wrong(key, f"a decimal number with at most {places} places")
        units = int(whole + (part or "").ljust(places, "0"))
        if units > U128_MAX:
            raise self.wrong(key, "a smaller number")
        return units


def _shown(value: Any) -> str:
    return repr(value)[:80] if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
