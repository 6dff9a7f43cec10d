"""Runs the blocks of docs/python.md from top to bottom in a fresh process and folder, on
files that the page itself makes, and the first one with NumPy alone."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import mlrbfn

ROOT = Path(__file__).parents[2]
MODELS = [ROOT / "models", mlrbfn.models()]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@unittest.skipUnless(any((folder / "efficientnet-lite0" / "model.onnx").exists() for folder in MODELS), "the default backbone is not there (make setup)")
class Docs(unittest.TestCase):
    def run_code(self, code: str, path: str) -> str:
        with tempfile.TemporaryDirectory() as room:
            env = {**os.environ, "PYTHONPATH": path, "MLRBFN_MODELS": os.pathsep.join(map(str, MODELS))}
            for file in sorted((ROOT / ".setup" / "onnxruntime").glob("libonnxruntime.so*")):
                env.setdefault("ONNXRUNTIME_SHARED_LIBRARY_PATH", str(file))
            r = subprocess.run([sys.executable, "-c", code], cwd=room, env=env, capture_output=True, text=True, check=False)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def test_page(self) -> None:
        blocks = BLOCK.findall((ROOT / "docs" / "python.md").read_text("utf-8"))
        self.assertGreater(len(blocks), 5)
        said = self.run_code("\n".join(blocks), os.pathsep.join(sys.path))
        self.assertIn("did you mean max_false_alarms?", said)

    @unittest.skipUnless(shutil.which("go") and importlib.util.find_spec("pip"), "there is no Go, or no pip")
    def test_first_block_after_an_installation(self) -> None:
        first = BLOCK.search((ROOT / "docs" / "python.md").read_text("utf-8"))[1]
        refuse = "import sys\nfor name in ('PIL', 'pandas', 'sklearn', 'tqdm', 'scipy'): sys.modules[name] = None\n"
        with tempfile.TemporaryDirectory() as installed:
            install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--target", installed, str(ROOT / "python")]
            r = subprocess.run([sys.executable, "-m", "pip", *install], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})
            self.assertEqual(r.returncode, 0, r.stderr)
            said = self.run_code(refuse + first + "print(mlrbfn.__file__, mlrbfn.__version__)", os.pathsep.join([installed, str(Path(np.__file__).parents[1])]))
            self.assertIn("[ True  True  True  True  True]", said)
            self.assertIn(installed, said)
            self.assertEqual(subprocess.run([Path(installed, "bin", "mlrbfn"), "version"], capture_output=True, text=True, check=True).stdout.split()[1], said.split()[-1])


if __name__ == "__main__":
    unittest.main()
