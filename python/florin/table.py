"""Tables of a market: records with exact numbers, and data frames of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, overload

from florin.errors import FlorinError

if TYPE_CHECKING:
    import pandas

# A column of texts, of truth values, of numbers below 2⁶³, or of integers of any size.
Kind = Literal["text", "bool", "count", "exact"]
# Base units of one florin, as a power of ten.
FLORIN_PLACES = 18
# Rows that the text of a table shows.
SHOWN_ROWS = 20


def fln(units: int) -> Decimal:
    """An amount of whole base units as florins, exactly: `fln(1_500_000_000_000_000_000)` is `Decimal("1.5")`."""
    if isinstance(units, bool) or not isinstance(units, int):
        message = f"{units!r} is no number of base units; give a whole number"
        raise FlorinError("INVALID_AMOUNT", message)
    digits = str(abs(units)).rjust(FLORIN_PLACES + 1, "0")
    text = f"{digits[:-FLORIN_PLACES]}.{digits[-FLORIN_PLACES:]}".rstrip("0").rstrip(".")
    return Decimal(f"-{text}" if units < 0 else text)


class Table(Sequence[dict[str, Any]]):
    """Records with the same columns. Columns that end in `_units` are whole base units (10⁻¹⁸ FLN), those in `_nano`
    billionths (nano-nats), those in `_micro` millionths: Python's integers, so that nothing is rounded."""

    def __init__(self, columns: Mapping[str, Kind], records: list[dict[str, Any]]) -> None:
        self.columns = tuple(columns)
        self._kinds = dict(columns)
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, at: slice) -> Table: ...

    def __getitem__(self, at: int | slice) -> dict[str, Any] | Table:
        found = self._records[at]
        return Table(self._kinds, found) if isinstance(found, list) else dict(found)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(record) for record in self._records)

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries."""
        return list(self)

    def column(self, name: str) -> list[Any]:
        """The values of one column."""
        if name not in self._kinds:
            message = f"there is no column {name!r}; the columns are {', '.join(self.columns)}"
            raise FlorinError("UNKNOWN_COLUMN", message)
        return [record[name] for record in self._records]

    def frame(self) -> pandas.DataFrame:
        """The rows as a data frame of pandas.

        Amounts and scores stay Python's integers (dtype object): 64 bits would overflow at 9.2 FLN, and floats round.
        """
        try:
            import pandas
        except ImportError:
            remedy = "pip install pandas, or use .records(), which needs no package"
            raise FlorinError("PANDAS_MISSING", "data frames need pandas", remedy=remedy) from None
        dtypes: dict[Kind, Any] = {"text": object, "bool": bool, "count": "Int64", "exact": object}
        columns = {
            name: pandas.Series(self.column(name), dtype=dtypes[kind]) for name, kind in self._kinds.items()
        }
        return pandas.DataFrame(columns, columns=list(self.columns))

    def __repr__(self) -> str:
        rows = [[_cell(record[name]) for name in self.columns] for record in self._records[:SHOWN_ROWS]]
        widths = [max(map(len, cells)) for cells in zip(self.columns, *rows)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(cells, widths)) for cells in (self.columns, *rows)]
        more = len(self) - SHOWN_ROWS
        return "\n".join([*lines, f"… and {more} more rows"] if more > 0 else lines)


def _cell(value: Any) -> str:
    text = "–" if value is None else str(value)
    return f"{text[:10]}…" if isinstance(value, str) and len(text) > 40 else text
