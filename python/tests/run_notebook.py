"""Runs the code cells of a notebook one after another, as a notebook does, without Jupyter.

    python tests/run_notebook.py NOTEBOOK
"""

import ast
import json
import sys
from pathlib import Path


def main(file):
    notebook = json.loads(Path(file).read_text())
    assert notebook["nbformat"] == 4, "another format of notebooks"
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells, "there are no code cells"
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells, 1):
        assert not cell["outputs"], f"cell {number} has an output: clear it, so that none is stale"
        tree = ast.parse("".join(cell["source"]), f"cell {number}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
            if shown is not None:
                print(repr(shown))
    print(f"{len(cells)} cells")


if __name__ == "__main__":
    main(sys.argv[1])
