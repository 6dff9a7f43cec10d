"""Makes a wheel of mlrbfn for each platform, the same bytes every time.

    wheels.py --into DIR [--only PLATFORM...]

Needs Go, and the Python package ziglang, which compiles C for all systems; `make
wheels` brings it. A wheel holds the program, the default backbone, and the pictures of
`mlrbfn demo`. It requires onnxruntime and does not bundle it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from email.message import EmailMessage
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 40_000_000

# Platforms: how wheels, Go and zig name them.
PLATFORMS = {
    "manylinux_2_28_x86_64": ("linux", "amd64", "x86_64-linux-gnu.2.28"),
    "manylinux_2_28_aarch64": ("linux", "arm64", "aarch64-linux-gnu.2.28"),
    "macosx_14_0_arm64": ("darwin", "arm64", "aarch64-macos.14.0"),
    "win_amd64": ("windows", "amd64", "x86_64-windows-gnu"),
}

# What Go's runtime and crypto/x509 call of macOS; zig has no frameworks.
FRAMEWORKS = {
    "CoreFoundation": "Versions/A",
    "Security": "Versions/A",
}

PICTURES = ["brick.png", "grass.png", "gravel.png", "chelsea.png", "coffee.png", "rocket.jpg"]


def frameworks(folder: Path) -> None:
    """Writes descriptions of frameworks that exist on every Mac: the linker needs their
    names, and the system has the rest."""
    symbols = (ROOT / "scripts" / "macos-symbols.txt").read_text(encoding="ascii").split()
    for name, path in FRAMEWORKS.items():
        inside = folder / f"{name}.framework"
        inside.mkdir(parents=True)
        mine = ", ".join(s for s in symbols if s.startswith("_Sec") == (name == "Security"))
        (inside / f"{name}.tbd").write_text(
            "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\n"
            f"install-name: '/System/Library/Frameworks/{name}.framework/{path}/{name}'\n"
            f"exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {mine} ]\n...\n",
            encoding="ascii",
        )
    (folder / "libresolv.tbd").write_text(
        "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: '/usr/lib/libresolv.9.dylib'\n"
        "exports:\n  - targets: [ arm64-macos ]\n    symbols: [ _res_9_nclose, _res_9_ninit, _res_9_nsearch ]\n...\n",
        encoding="ascii",
    )


def build(platform: str, folder: Path) -> Path:
    """Builds the program."""
    goos, goarch, target = PLATFORMS[platform]
    out = folder / ("mlrbfn.exe" if goos == "windows" else "mlrbfn")
    import ziglang

    cc = f"{Path(ziglang.__file__).parent / 'zig'} cc -target {target}"
    if goos == "darwin":
        frameworks(folder / "frameworks")
        cc += f" -F{folder / 'frameworks'} -L{folder / 'frameworks'}"
    env = {**os.environ, "GOOS": goos, "GOARCH": goarch, "GOAMD64": "v1", "CGO_ENABLED": "1", "CC": cc, "GOFLAGS": "-trimpath"}
    # What compiling C names in the program must not depend on folders.
    env["CGO_CFLAGS"] = "-O2 -g0"
    subprocess.run(
        ["go", "build", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", str(out), "./cmd/mlrbfn"],
        cwd=ROOT, env=env, check=True,
    )
    return out


def metadata(version: str) -> bytes:
    """Returns the file METADATA."""
    m = EmailMessage()
    for name, value in [
        ("Metadata-Version", "2.4"),
        ("Name", "mlrbfn"),
        ("Version", version),
        ("Summary", "Which class is an image of, and is it of any class that is known? Calibrated out-of-distribution detection"),
        ("License-Expression", "Apache-2.0"),
        ("License-File", "LICENSE"),
        ("Keywords", "out-of-distribution,anomaly,conformal,image,onnx"),
        ("Classifier", "Environment :: Console"),
        ("Classifier", "Operating System :: MacOS"),
        ("Classifier", "Operating System :: Microsoft :: Windows"),
        ("Classifier", "Operating System :: POSIX :: Linux"),
        ("Classifier", "Programming Language :: Go"),
        ("Classifier", "Topic :: Scientific/Engineering :: Image Recognition"),
        ("Requires-Python", ">=3.10"),
        ("Requires-Dist", "onnxruntime>=1.29,<2"),
        ("Description-Content-Type", "text/markdown"),
    ]:
        m[name] = value
    text = "".join(f"{k}: {v}\n" for k, v in m.items())
    return (text + "\n" + (ROOT / "python" / "README.md").read_text(encoding="utf-8")).encode()


def wheel(platform: str, version: str, program: Path, into: Path) -> Path:
    """Writes a wheel."""
    info = f"mlrbfn-{version}.dist-info"
    files: dict[str, bytes] = {
        f"mlrbfn-{version}.data/scripts/{program.name}": program.read_bytes(),
        f"{info}/METADATA": metadata(version),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: mlrbfn scripts/wheels.py\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n".encode(),
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    for file in sorted((ROOT / "python" / "mlrbfn").glob("*.py")):
        files[f"mlrbfn/{file.name}"] = file.read_bytes()
    model = ROOT / "models" / "efficientnet-lite0"
    for name in ("model.onnx", "preprocessor_config.json", "README.md"):
        files[f"mlrbfn/models/{model.name}/{name}"] = (model / name).read_bytes()
    for name in PICTURES:
        files[f"mlrbfn/demo/{name}"] = (ROOT / ".setup" / "photos" / name).read_bytes()
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n" for name, data in sorted(files.items())
    )
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    into.mkdir(parents=True, exist_ok=True)
    out = into / f"mlrbfn-{version}-py3-none-{platform}.whl"
    partial = out.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        # The directory of metadata comes last, as the standard recommends.
        for name in sorted(files, key=lambda n: (n.startswith(info), n)):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, files[name], compresslevel=9)
    partial.replace(out)
    size = out.stat().st_size
    print(f"{out}: {size:,} bytes, sha256 {hashlib.sha256(out.read_bytes()).hexdigest()}", flush=True)
    if size > MOST_BYTES:
        sys.exit(f"{out} has more than {MOST_BYTES:,} bytes")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(PLATFORMS), default=list(PLATFORMS))
    args = parser.parse_args()
    version = (ROOT / "internal" / "version" / "VERSION").read_text(encoding="ascii").strip()
    for platform in args.only:
        # Go's cache goes by the options of the C compiler, which name this folder.
        work = ROOT / ".setup" / "wheels" / platform
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        wheel(platform, version, build(platform, work), args.into)


main()
