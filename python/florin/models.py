"""Writes a model for a task, and reads a trained one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class FlorinError(Exception):
    """The program refused a request. `code` is its stable error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code = code


def export(
    model: torch.nn.Module,
    example: torch.Tensor | tuple[torch.Tensor, ...],
    file: str | Path,
) -> dict[str, Any]:
    """Writes `model` to `file` (.pt2), and returns what the program reads in it.

    The first dimension of each tensor of `example` is the rows; a task may have any number of them. The
    model is exported as it is, in training or in evaluation mode: dropout and statistics of batches are
    part of the graph only in training mode. Its code stays here, and so do the folders of this machine.

    Raises `FlorinError` for a model with an operator that tasks do not support.
    """
    import torch

    inputs = example if isinstance(example, tuple) else (example,)
    rows = torch.export.Dim("rows")
    program = torch.export.export(model, inputs, dynamic_shapes=tuple({0: rows} for _ in inputs))
    torch.export.save(program, str(file))
    strip_paths(file)
    return _run(["model", "show", str(file), "--json"])


def load(task: str, market: str | None = None) -> dict[str, torch.Tensor]:
    """The newest parameters of a task, by the model's own names. The program has checked their digest.

    `task` is an id or its first six digits; `market` the coordinator's URL, by default FLORIN_MARKET.
    Tensors that the task does not train are not among them: `load_state_dict(…, strict=False)`.
    """
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        where = [] if market is None else ["--market", market]
        _run(["task", "model", task, "--out", str(file), "--json", *where])
        return load_file(file)


def strip_paths(file: str | Path) -> None:
    """Removes the folders of this machine from the traces in an exported model."""
    with zipfile.ZipFile(file) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    partial = Path(file).with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        for info, content in entries:
            if info.filename.endswith("models/model.json"):
                text = re.sub(r'(File \\")[^"\\]*/(site-packages/)', r"\1\2", content.decode())
                text = re.sub(r'(File \\")/[^"\\]*/', r"\1", text)
                content = text.encode()
            # A fixed date: two exports of one model are one file.
            archive.writestr(zipfile.ZipInfo(info.filename), content)
    partial.replace(file)


def _run(arguments: list[str]) -> dict[str, Any]:
    """Runs the program and returns what it prints as JSON."""
    program = os.environ.get("FLORIN", "florin")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout)
    last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    found = re.match(r"error\[(\w+)\]: (.*)", last[0])
    code, message = found.groups() if found else ("FAILED", last[0])
    raise FlorinError(code, message)
