"""Writes a model for a task, and reads a trained one."""

from __future__ import annotations

import fnmatch
import re
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from florin.errors import FlorinError
from florin.market import Market
from florin.program import run

if TYPE_CHECKING:
    import torch

Loss = Literal["cross_entropy", "token_cross_entropy", "binary", "squared", "absolute", "huber", "output"]
# A source of the program, such as "csv:FILE#LABEL", or arrays: rows, and one label or target for each.
Data = str | tuple[Any, Any]

MODEL, TASK, ROWS, LABELS = "model.pt2", "task.toml", "rows.npy", "labels.npy"
# Losses whose targets stand behind the inputs of a row, and those without targets.
TARGETS_IN_ROWS: tuple[Loss, ...] = ("binary", "token_cross_entropy")
# Kinds of sources with several files.
FILE_LISTS = ("npy", "idx", "cifar10")


def export(
    model: torch.nn.Module,
    example: torch.Tensor | tuple[torch.Tensor, ...],
    path: str | Path,
    *,
    data: Data | None = None,
    loss: Loss | None = None,
    trainable: str | Iterable[str] | None = None,
    loss_bound: float | None = None,
    buffers: Literal["average", "freeze", "refuse"] | None = None,
) -> dict[str, Any]:
    """Writes `model` to a file, if `path` ends in .pt2, or to a new folder with a checked task.

    The first dimension of each tensor of `example` is the rows; a task may have any number of them. The model is
    exported as it is, in training or in evaluation mode: dropout and statistics of batches are part of the graph only
    in training mode. Its code stays here, and so do the folders of this machine.

    A file: returns what `florin model show` reads in it.

    A folder: `path/model.pt2` and, with `data`, `path/task.toml`, which `florin task check` has accepted: returns what
    that prints, and the file as `"file"`. Edit its budget and publish it. `data` are the rows that judge: a source of
    the program, such as "csv:table.csv#price", or `(rows, labels)` as arrays, which are written to the folder. Rows
    have the shape (n, …), labels (n,); `binary` and `token_cross_entropy` take targets of the shape (n, targets),
    `output` takes None. `trainable` names the parameters that are trained, such as ["*lora*", "head.*"]; by default
    those with `requires_grad`. Without `data`, the result has the command that makes the task: `"command"`.

    Raises `FlorinError` with the program's code and remedy; a folder is written whole or not at all.
    """
    target = Path(path)
    options = _Options(data, loss, trainable, loss_bound, buffers)
    if target.suffix == ".pt2":
        if options.given():
            message = f"{', '.join(options.given())}: a file has no task, a folder has one"
            raise FlorinError("FOLDER_EXPECTED", message, remedy=f"give a folder, such as {target.with_suffix('')}")
        _write(model, example, target)
        shown: dict[str, Any] = run(["model", "show", str(target)])
        return shown
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        remedy = "choose another name, or remove it"
        raise FlorinError("FILE_EXISTS", f"{target} already exists and is not overwritten", remedy=remedy)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".florin-", dir=target.parent) as temporary:
        folder = Path(temporary) / "task"
        folder.mkdir()
        # Refusals of the data before the export, which takes longer.
        arguments = options.arguments(model, folder)
        _write(model, example, folder / MODEL)
        result = _task(arguments, folder, target, options.data is not None)
        if target.exists():
            target.rmdir()
        folder.rename(target)
    return result


def load(task: str, market: str | Market | None = None) -> dict[str, torch.Tensor]:
    """The newest parameters of a task, by the model's own names, for `load_state_dict(…, strict=False)`.

    `task` is an id or its first digits, at least six; `market` the coordinator's URL, by default FLORIN_MARKET. The
    BLAKE3 digest of the bytes is computed here and compared with the task's. Tensors that the task does not train are
    not among them. `Market.model` returns the same as arrays, without PyTorch.
    """
    market = market if isinstance(market, Market) else Market(market)
    torch = _torch("load needs PyTorch", "pip install torch, or use Market.model, which returns arrays of NumPy")
    return {name: torch.from_numpy(array) for name, array in market.model(task).items()}


def strip_paths(file: str | Path) -> None:
    """Removes the folders of this machine from the traces in an exported model."""
    partial = Path(file).with_suffix(".partial")
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as stripped:
        for info in archive.infolist():
            # A fixed date: two exports of one model are one file.
            entry = zipfile.ZipInfo(info.filename)
            entry.file_size = info.file_size
            if info.filename.endswith("models/model.json"):
                text = re.sub(r'(File \\")[^"\\]*/(site-packages/)', r"\1\2", archive.read(info).decode())
                stripped.writestr(entry, re.sub(r'(File \\")/[^"\\]*/', r"\1", text).encode())
                continue
            with archive.open(info) as source, stripped.open(entry, "w") as copy:
                shutil.copyfileobj(source, copy)
    partial.replace(file)


def _torch(message: str, remedy: str) -> Any:
    try:
        import torch
    except ImportError:
        raise FlorinError("TORCH_MISSING", message, remedy=remedy) from None
    return torch


class _Options:
    """The options of a task beside its model."""

    def __init__(
        self,
        data: Data | None,
        loss: Loss | None,
        trainable: str | Iterable[str] | None,
        loss_bound: float | None,
        buffers: str | None,
    ) -> None:
        self.data, self.loss, self.loss_bound, self.buffers = data, loss, loss_bound, buffers
        self.trainable = [trainable] if isinstance(trainable, str) else None if trainable is None else list(trainable)

    def given(self) -> list[str]:
        """The names of the options that are not the default."""
        return [name for name, value in vars(self).items() if value is not None]

    def arguments(self, model: torch.nn.Module, folder: Path) -> list[str]:
        """The arguments of `florin task new`; writes arrays to `folder`."""
        found = ["task", "new", "--model", MODEL]
        if self.data is not None:
            source = _absolute(self.data) if isinstance(self.data, str) else self._arrays(self.data, folder)
            found += ["--data", source]
        for option, value in (("--loss", self.loss), ("--loss-bound", self.loss_bound), ("--buffers", self.buffers)):
            found += [] if value is None else [f"{option}={value}"]
        return [*found, *(f"--trainable={pattern}" for pattern in self._patterns(model))]

    def _patterns(self, model: torch.nn.Module) -> list[str]:
        named = dict(model.named_parameters())
        if self.trainable is None:
            trained = [name for name, parameter in named.items() if parameter.requires_grad]
            if not trained:
                remedy = "name the parameters: trainable=[…]"
                raise FlorinError("NOTHING_TRAINABLE", "no parameter of the model requires a gradient", remedy=remedy)
            return [] if len(trained) == len(named) else trained
        for pattern in self.trainable:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in named):
                shown = ", ".join(list(named)[:8])
                raise FlorinError("INVALID_MODEL", f"trainable: {pattern!r} fits no parameter; there are {shown} …")
        return self.trainable

    def _arrays(self, data: Any, folder: Path) -> str:
        """Writes rows and labels, and returns their source."""
        if not isinstance(data, tuple) or len(data) != 2:
            remedy = 'give a source such as "csv:table.csv#price", or (rows, labels) as arrays'
            raise FlorinError("INVALID_DATA", f"data is a {type(data).__name__}", remedy=remedy)
        rows, labels = _array("rows", data[0]), None if data[1] is None else _array("labels", data[1])
        if rows.ndim < 2 or len(rows) == 0:
            raise FlorinError("INVALID_DATA", f"rows have the shape {rows.shape}; give (n, …) with n > 0")
        if labels is not None and len(labels) != len(rows):
            raise FlorinError("INVALID_DATA", f"{len(rows)} rows and {len(labels)} labels; give one for each row")
        if self.loss == "output" or self.loss in TARGETS_IN_ROWS:
            rows = rows.reshape(len(rows), -1)
            if labels is not None:
                rows = np.concatenate([rows, labels.reshape(len(rows), -1)], axis=1)
            labels = np.zeros(len(rows), dtype=np.int64)
        elif labels is None or labels.reshape(len(rows), -1).shape[1] != 1:
            shape = None if labels is None else labels.shape
            raise FlorinError("INVALID_DATA", f"labels have the shape {shape}; give one for each row: (n,)")
        np.save(folder / ROWS, rows)
        np.save(folder / LABELS, labels.reshape(-1))
        return f"npy:{ROWS},{LABELS}"


def _array(name: str, value: Any) -> NDArray[Any]:
    """An array of numbers that the program reads: tensors of PyTorch and lists become one."""
    value = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    try:
        array = np.ascontiguousarray(value)
    except ValueError as cause:
        raise FlorinError("INVALID_DATA", f"{name} are no array: {cause}") from None
    if array.dtype.kind not in "biuf":
        raise FlorinError("INVALID_DATA", f"{name} have the type {array.dtype}; give numbers")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise FlorinError("INVALID_DATA", f"{name} have values that are not finite; remove or replace them")
    return array.astype(np.float32) if array.dtype.itemsize == 2 and array.dtype.kind == "f" else array


def _write(model: torch.nn.Module, example: torch.Tensor | tuple[torch.Tensor, ...], file: Path) -> None:
    torch = _torch("export needs PyTorch 2.8 to 2.11", "pip install torch")
    inputs = example if isinstance(example, tuple) else (example,)
    shapes = [tuple(each.shape) if isinstance(each, torch.Tensor) else () for each in inputs]
    sizes = {shape[0] if shape else 0 for shape in shapes}
    if len(sizes) != 1 or sizes.pop() < 2:
        shown = ", ".join(map(str, shapes))
        remedy = "give tensors whose first dimension is the rows, at least 2, such as torch.zeros(4, 10)"
        raise FlorinError("INVALID_EXAMPLE", f"the inputs of the example have the shapes {shown}", remedy=remedy)
    rows = torch.export.Dim("rows")
    program = torch.export.export(model, inputs, dynamic_shapes=tuple({0: rows} for _ in inputs))
    torch.export.save(program, str(file))
    strip_paths(file)


def _task(arguments: list[str], folder: Path, target: Path, with_data: bool) -> dict[str, Any]:
    """Makes and checks the task of a folder that will be named `target`."""
    if not with_data:
        shown: dict[str, Any] = run(["model", "show", MODEL], folder)
        return shown | {"command": ["florin", *arguments, "--data", "SOURCE", "--out", TASK]}
    made = run([*arguments, "--out", TASK], folder)
    checked: dict[str, Any] = run(["task", "check", TASK], folder)
    return checked | {"file": str(target / TASK), "notes": made.get("notes", [])}


def _absolute(source: str) -> str:
    """A source whose file names are absolute: the program runs in another folder."""
    kind, colon, rest = source.partition(":")
    if not colon:
        kind, rest = "", source
    files, mark, label = rest.rpartition("#") if "#" in rest else (rest, "", "")
    if not mark and not colon:
        return source
    parts = files.split(",") if kind in FILE_LISTS else [files]
    for part in parts:
        if not Path(part).is_file():
            remedy = f"check the path; a relative path starts at {Path.cwd()}"
            raise FlorinError("FILE_NOT_FOUND", f"data: there is no file {part}", remedy=remedy)
    return kind + colon + ",".join(str(Path(part).absolute()) for part in parts) + mark + label
