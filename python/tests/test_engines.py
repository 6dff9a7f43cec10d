"""Spark, Ray and others with the images of a small folder: scripts/check_engines, in the
environment of scripts/requirements-engines.txt, and what of `mlrbfn.spark` and `mlrbfn.ray`
needs no engine."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".setup" / "engines" / "bin" / "python"


@unittest.skipUnless(PYTHON.exists(), "the engines are not there (scripts/requirements-engines.txt)")
class Engines(unittest.TestCase):
    def check(self, *engines: str) -> list[dict[str, object]]:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        r = subprocess.run([ROOT / "scripts" / "check_engines", *engines, "--images", "200"], env=env, capture_output=True, text=True, check=False)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        return [json.loads(line) for line in r.stdout.splitlines() if line.startswith("{")]

    def test_spark(self) -> None:
        said = self.check("spark")
        self.assertEqual([s.get("executors killed") for s in said], [None, 1, None, 1, None, None])

    def test_connect(self) -> None:
        self.assertEqual(len(self.check("connect")), 4)

    def test_ray(self) -> None:
        self.assertEqual([s.get("actors killed") for s in self.check("ray")], [None, 1, None, None])

    def test_others(self) -> None:
        self.check("datasets", "daft", "dask")

    def test_batches_are_cut_by_bytes(self) -> None:
        code = """
import sys, pyarrow as pa
from mlrbfn import _engines
_engines.MOST_BYTES = 1000
some = list(_engines._cut(pa.array([b"x" * 600, b"x" * 600, None, b"y", b"z" * 2000, b"z"])))
assert [[len(i) for i in part] for part in some] == [[600, 600], [len("there is no image"), 1, 2000], [1]], some
assert some[1][0] == "there is no image"
assert "No such file" in _engines._read(sys.argv[1] + "/absent.png")
open(sys.argv[1] + "/a.bin", "wb").write(b"abc")
assert _engines._read(sys.argv[1] + "/a.bin") == _engines._read("file://" + sys.argv[1] + "/a.bin") == _engines._read({"bytes": b"abc", "path": None}) == b"abc"
"""
        with tempfile.TemporaryDirectory() as room:
            r = subprocess.run([PYTHON, "-c", code, room], env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, check=False)
        self.assertEqual(r.returncode, 0, r.stderr)


if __name__ == "__main__":
    unittest.main()
