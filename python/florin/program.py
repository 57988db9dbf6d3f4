"""The program `florin`: runs a command and returns its JSON, or raises what it reports."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from florin.errors import FlorinError

# Variable with the path of the program; by default `florin` on PATH.
VARIABLE = "FLORIN"
# Longest text of the program's own words in an error, in characters.
SHOWN_MAX = 2_000


def run(arguments: Sequence[str], folder: Path | None = None) -> Any:
    """Runs the program with `--json` in `folder`, and returns what it prints."""
    program = os.environ.get(VARIABLE) or "florin"
    # A relative path is relative to this process, not to `folder`.
    program = str(Path(program).absolute()) if os.sep in program else program
    command = [program, *arguments, "--json"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False)
    except OSError as cause:
        remedy = f"install it with `cargo install --path .` in a checkout, or name it: {VARIABLE}=/path/to/florin"
        message = f"the program {program!r} cannot be started: {cause}"
        raise FlorinError("PROGRAM_MISSING", message, remedy=remedy) from None
    if done.returncode != 0:
        raise _failure(done)
    try:
        return json.loads(done.stdout)
    except ValueError:
        message = f"{' '.join(arguments[:2])} printed no JSON: {done.stdout[:SHOWN_MAX]!r}"
        raise FlorinError("INVALID_OUTPUT", message) from None


def _failure(done: subprocess.CompletedProcess[str]) -> FlorinError:
    """The failure on the last line of standard error; wrong usage of the program has no JSON."""
    lines = done.stderr.strip().splitlines()
    try:
        error = json.loads(lines[-1])["error"]
        causes = [str(cause) for cause in error.get("causes", [])]
        return FlorinError(str(error["code"]), str(error["message"]), causes, error.get("remedy"))
    except (ValueError, LookupError, TypeError, AttributeError):
        shown = done.stderr.strip()[-SHOWN_MAX:] or f"exit status {done.returncode}"
        return FlorinError("PROGRAM_FAILED", shown, remedy="use a program `florin` of the version of this package")
