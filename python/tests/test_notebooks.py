"""Runs the notebooks from top to bottom, each cell as Jupyter does: an expression at its
end is shown."""

from __future__ import annotations

import ast
import json
import unittest
from pathlib import Path

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


class Notebooks(unittest.TestCase):
    def test_run(self) -> None:
        self.assertTrue(NOTEBOOKS)
        for file in NOTEBOOKS:
            notebook = json.loads(file.read_text("utf-8"))
            names: dict[str, object] = {"__name__": "__main__"}
            for cell in notebook["cells"]:
                if cell["cell_type"] != "code":
                    continue
                with self.subTest(notebook=file.name, cell=cell["id"]):
                    self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None), "clear the output before a commit")
                    code = ast.parse("".join(cell["source"]), f"{file.name} {cell['id']}")
                    shown = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
                    exec(compile(code, f"{file.name} {cell['id']}", "exec"), names)
                    if shown:
                        self.assertTrue(repr(eval(compile(ast.Expression(shown.value), file.name, "eval"), names)))


if __name__ == "__main__":
    unittest.main()
