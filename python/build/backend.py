"""Builds the wheel of this machine from a checkout, for `pip install ./python`: the library
with the go tool, the program that loads it with a C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Makes the wheel, as PEP 517 has it, and returns its name."""
    if not (ROOT / "scripts" / "wheels.py").exists():
        sys.exit("mlrbfn is built in its repository: pip install ./python, in a checkout; pip install mlrbfn needs none")
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "cc", "clang")), "")
    if not shutil.which("go") or not compiler:
        sys.exit("building mlrbfn needs Go (https://go.dev/dl) and a C compiler on the path; pip install mlrbfn needs neither")
    sys.path.insert(0, str(ROOT / "scripts"))
    import wheels

    version = (ROOT / "internal" / "version" / "VERSION").read_text(encoding="ascii").strip()
    system = {"win32": "windows", "darwin": "darwin"}.get(sys.platform, "linux")
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    with tempfile.TemporaryDirectory() as room:
        library = Path(room, wheels.LIBRARIES[system])
        go = ["go", "build", "-trimpath", "-buildmode=c-shared", "-buildvcs=false", "-ldflags=-s -w", "-o", str(library), "./python/native"]
        subprocess.run(go, cwd=ROOT, check=True, env={**os.environ, "CGO_ENABLED": "1", "CC": compiler})
        program = Path(room, "mlrbfn.exe" if system == "windows" else "mlrbfn")
        linking = ["-ldl"] if system == "linux" else []
        subprocess.run([*compiler.split(), "-O2", str(ROOT / "python" / "launcher" / "launcher.c"), "-o", str(program), *linking], check=True)
        return wheels.wheel(platform, version, program, library, Path(wheel_directory), complete=False).name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """There is none: the package is built in its repository."""
    raise NotImplementedError("mlrbfn has no source distribution; pip install ./python builds a checkout")
