"""Florin for Python: models of PyTorch for tasks of a market, what a market publishes, and Shapley values.

    import florin
    florin.export(model, example, "task", data="csv:table.csv#price", loss="squared")
    model.load_state_dict(florin.load("3fa9c1"), strict=False)
    florin.Market("http://127.0.0.1:7700").scores("3fa9c1").frame()
    florin.shapley.odd(value, players=10)

`export` needs PyTorch 2.8 to 2.11 and the program `florin`, on PATH or named by the variable FLORIN; `load` needs
PyTorch, and `frame` pandas. docs/python.md has more.
"""

from florin import shapley
from florin.errors import FlorinError
from florin.market import Market
from florin.models import export, load, strip_paths
from florin.shapley import ValuationError
from florin.table import Table, fln

__all__ = [
    "FlorinError",
    "Market",
    "Table",
    "ValuationError",
    "export",
    "fln",
    "load",
    "shapley",
    "strip_paths",
]
