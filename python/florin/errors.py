"""The error of this package."""

from __future__ import annotations

from collections.abc import Sequence


class FlorinError(Exception):
    """A refusal, by this package, by the program `florin` or by a market.

    `code` is stable, for programs. `message` states the problem, `causes` what led to it, and `remedy`, if there is
    one, what to do. The codes of the program and of a market are theirs, unchanged.
    """

    def __init__(self, code: str, message: str, causes: Sequence[str] = (), remedy: str | None = None) -> None:
        super().__init__(code, message, tuple(causes), remedy)
        self.code = code
        self.message = message
        self.causes = tuple(causes)
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [f"{self.message} [{self.code}]", *(f"  because: {cause}" for cause in self.causes)]
        return "\n".join(lines if self.remedy is None else [*lines, f"  remedy: {self.remedy}"])


class ValuationError(FlorinError, ValueError):
    """A valuation that cannot be computed; the codes are those of the crate florin-contribution."""
