"""Tests of the program of the wheel: a launcher of the shared library. It behaves as the
plain program, which MLRBFN_PROGRAM names, wherever that is there to compare with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import numpy as np

import mlrbfn
from mlrbfn import _native

LAUNCHER = Path(__file__).parents[1] / "bin" / ("mlrbfn.exe" if os.name == "nt" else "mlrbfn")
PLAIN = os.environ.get("MLRBFN_PROGRAM")


@unittest.skipUnless(LAUNCHER.exists(), "the launcher is not built (make python)")
class Program(unittest.TestCase):
    def setUp(self) -> None:
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.room = Path(room.name)
        rng = np.random.default_rng(0)
        np.save(self.room / "features.npy", rng.normal(size=(3000, 32)).astype(np.float32))
        np.save(self.room / "labels.npy", np.arange(3000) % 3)
        self.programs = [str(LAUNCHER), *([PLAIN] if PLAIN else [])]

    def run_all(self, *args: str) -> list[tuple[int, bytes, bytes]]:
        runs = [subprocess.run([p, *args], capture_output=True, check=False, cwd=self.room) for p in self.programs]
        return [(r.returncode, r.stdout, r.stderr) for r in runs]

    def test_exit_codes_and_output(self) -> None:
        for args, code in [(["--help"], 0), (["train", "--help"], 0), (["nothing"], 2), (["train"], 2), (["show", "none.safetensors"], 1), (["show", "größe %s *"], 1)]:
            with self.subTest(args):
                runs = self.run_all(*args)
                self.assertEqual(runs[0][0], code)
                self.assertEqual(runs[0], runs[-1])

    def test_version(self) -> None:
        out = subprocess.run([LAUNCHER, "version"], capture_output=True, check=True, text=True).stdout
        self.assertEqual(out.split()[1], _native.call("setup", {"env": {}}, quick=True)["version"])

    def test_found_through_a_link(self) -> None:
        os.symlink(LAUNCHER, self.room / "link")
        self.assertEqual(subprocess.run([self.room / "link", "--version"], check=False, capture_output=True).returncode, 0)

    def test_says_what_is_missing(self) -> None:
        alone = self.room / "mlrbfn"
        alone.write_bytes(LAUNCHER.read_bytes())
        alone.chmod(0o755)
        r = subprocess.run([alone], check=False, capture_output=True, text=True)
        self.assertEqual(r.returncode, 1)
        self.assertIn("install the package again", r.stderr)

    @unittest.skipIf(os.name == "nt", "no signals")
    def test_signals(self) -> None:
        for at, program in enumerate(self.programs):
            for sent, code, said in [(signal.SIGINT, 130, b"interrupted"), (signal.SIGTERM, 130, b"interrupted"), (signal.SIGKILL, -9, b"")]:
                with self.subTest(program=program, signal=sent):
                    out = self.room / f"{at}.{sent}.safetensors"
                    command = [program, "train", "--features", ".", "--out", out, "--epochs", "100000", "--checkpoint-every", "10ms"]
                    p = subprocess.Popen(command, cwd=self.room, stderr=subprocess.PIPE)
                    while p.poll() is None and not Path(f"{out}.checkpoint").exists():
                        time.sleep(0.01)  # until heads are trained
                    p.send_signal(sent)
                    seen = p.communicate()[1]
                    self.assertEqual(p.returncode, code, seen)
                    self.assertIn(said, seen)

    @unittest.skipIf(os.name == "nt", "no pipes of a shell")
    def test_closed_pipe(self) -> None:
        codes = []
        for program in self.programs:
            p = subprocess.Popen([program, "train", "--help-all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.room)
            p.stdout.close()
            codes.append((p.wait(), p.stderr.read()))
            p.stderr.close()
        self.assertEqual(codes[0], codes[-1])


class Module(unittest.TestCase):
    def test_the_package_says_its_version(self) -> None:
        self.assertTrue(mlrbfn.__version__)

    def test_runs_without_an_installed_program(self) -> None:
        r = subprocess.run([sys.executable, "-m", "mlrbfn", "nothing"], check=False, capture_output=True, text=True)
        self.assertIn(r.returncode, (1, 2))
        self.assertTrue(r.stderr)


if __name__ == "__main__":
    unittest.main()
