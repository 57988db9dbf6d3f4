"""Draws the output of the demonstration as docs/demo.svg.

usage: CLICOLOR_FORCE=1 cargo xtask demo 2>&1 | python3 docs/demo_svg.py > docs/demo.svg
       CLICOLOR_FORCE=1 cargo xtask demo --compute 2>&1 | python3 docs/demo_svg.py > docs/demo-compute.svg
"""

import html
import os
import re
import sys
import textwrap

COLUMNS = 120
CHARACTER, LINE, MARGIN = 7.8, 18, 20
FIRST = ("Preparing shards", "Opening the market")
STYLE = (
    "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;"
    "fill:#d7d5cf;white-space:pre}.b{font-weight:700;fill:#fff}.d{fill:#8f8c85}.g{fill:#5fd39a}"
    ".r{fill:#f08a80}.y{fill:#e8b45a}"
)
# The program's styles, as SGR codes.
CLASSES = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y"}
ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")


def spans(line):
    """The parts of a line with their classes; an empty class is plain text."""
    found, style = [], ""
    pieces = ESCAPE.split(line)
    for index, piece in enumerate(pieces):
        if index % 2:
            codes = [code for code in piece.split(";") if code in CLASSES]
            style = CLASSES[codes[-1]] if codes else ""
        elif piece:
            found.append((piece, style))
    return found


def wrapped(line):
    """A line of one style, broken at COLUMNS; other lines are not broken."""
    parts = spans(line)
    text = "".join(part for part, _ in parts)
    if len(text) <= COLUMNS:
        return [parts]
    indent = " " * (len(text) - len(text.lstrip()))
    style = parts[-1][1]
    return [[(piece, style)] for piece in textwrap.wrap(text, COLUMNS, subsequent_indent=indent)]


def element(parts, number):
    y = 32 + LINE * number
    column, drawn = 0, []
    for text, style in parts:
        if text.strip():
            x = MARGIN + CHARACTER * column
            name = f' class="{style}"' if style else ""
            length = f'textLength="{CHARACTER * len(text):.1f}"'
            escaped = html.escape(text, quote=False)
            drawn.append(f'<tspan x="{x:.1f}"{name} xml:space="preserve" {length}>{escaped}</tspan>')
        column += len(text)
    return f'<text y="{y}">{"".join(drawn)}</text>'


def main():
    lines = sys.stdin.read().replace("\r", "\n").replace(os.getcwd(), "~/florin").splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith(FIRST)), None)
    if first is None:
        sys.exit(f"no line begins with one of {FIRST}: pass the output of a demonstration")
    command = "cargo xtask demo" + (" --compute" if lines[first].startswith(FIRST[1]) else "")
    shown = [[(f"$ {command}", "b")]]
    for line in lines[first:]:
        shown.extend(wrapped(line.rstrip()))
    columns = max(sum(len(text) for text, _ in parts) for parts in shown)
    width, height = round(2 * MARGIN + CHARACTER * columns), 50 + LINE * (len(shown) - 1)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
          f'aria-label="The output of {command}">')
    print(f"<style>{STYLE}</style>")
    print(f'<rect width="{width}" height="{height}" rx="10" fill="#1b1b1a"/>')
    for number, parts in enumerate(shown):
        print(element(parts, number))
    print("</svg>")


if __name__ == "__main__":
    main()
