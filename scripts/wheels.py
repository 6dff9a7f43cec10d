"""Makes a wheel of mlrbfn for each platform, the same bytes every time.

    wheels.py --into DIR [--only PLATFORM...]

Needs Go, and the Python package ziglang, which compiles C for all systems; `make
wheels` brings it. A wheel holds a shared library with the program and what the Python
package calls (python/native), a small program that loads it (python/launcher), the
Python package, the default backbone, and the pictures of `mlrbfn demo`. It requires
onnxruntime and does not bundle it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import zipfile
from email.message import EmailMessage
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 42_000_000

# Platforms: how wheels, Go and zig name them.
PLATFORMS = {
    "manylinux_2_28_x86_64": ("linux", "amd64", "x86_64-linux-gnu.2.28"),
    "manylinux_2_28_aarch64": ("linux", "arm64", "aarch64-linux-gnu.2.28"),
    "macosx_14_0_arm64": ("darwin", "arm64", "aarch64-macos.14.0"),
    "win_amd64": ("windows", "amd64", "x86_64-windows-gnu"),
}

# How the shared library is called.
LIBRARIES = {"linux": "libmlrbfn.so", "darwin": "libmlrbfn.dylib", "windows": "mlrbfn.dll"}

PICTURES = ["brick.png", "grass.png", "gravel.png", "chelsea.png", "coffee.png", "rocket.jpg"]


def macos(folder: Path) -> str:
    """Writes what zig lacks of macOS, and returns the options for it: descriptions of
    the libraries that Go's packages import symbols of, which are on every Mac, and a
    declaration that the Prometheus client includes."""
    goroot = subprocess.run(["go", "env", "GOROOT"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    symbols: dict[str, set[str]] = {}
    for package in ("crypto/x509/internal/macos", "internal/syscall/unix"):
        for file in sorted((Path(goroot) / "src" / package).glob("*.go")):
            for symbol, library in re.findall(r'^//go:cgo_import_dynamic \S+ (\S+) "(/(?!usr/lib/libSystem)[^"]+)"$', file.read_text(encoding="utf-8"), re.MULTILINE):
                symbols.setdefault(library, set()).add("_" + symbol)
    for library, names in symbols.items():
        name = library.rsplit("/", 1)[1]
        at = folder / f"{name}.framework" / f"{name}.tbd" if ".framework/" in library else folder / (name.split(".")[0] + ".tbd")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(
            f"--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: '{library}'\n"
            f"exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {', '.join(sorted(names))} ]\n...\n",
            encoding="ascii",
        )
    (folder / "mach").mkdir()
    (folder / "mach" / "mach_vm.h").write_text(
        "#include <mach/mach_types.h>\n#include <mach/vm_region.h>\n"
        "kern_return_t mach_vm_region(vm_map_t, mach_vm_address_t *, mach_vm_size_t *, vm_region_flavor_t,\n"
        "    vm_region_info_t, mach_msg_type_number_t *, mach_port_t *);\n",
        encoding="ascii",
    )
    return f" '-F{folder}' '-L{folder}' -isystem '{folder}'"


def build(platform: str, folder: Path) -> tuple[Path, Path]:
    """Builds the program and the library that it loads."""
    goos, goarch, target = PLATFORMS[platform]
    out = folder / ("mlrbfn.exe" if goos == "windows" else "mlrbfn")
    import ziglang

    cc = f"'{Path(ziglang.__file__).parent / 'zig'}' cc -target {target}"
    if goos == "darwin":
        cc += macos(folder / "macos")
    env = {**os.environ, "GOOS": goos, "GOARCH": goarch, "GOAMD64": "v1", "CGO_ENABLED": "1", "CC": cc, "GOFLAGS": "-trimpath"}
    # What compiling C names in the program must not depend on folders.
    env["CGO_CFLAGS"] = "-O2 -g0"
    library = folder / LIBRARIES[goos]
    # Go says -s and then -g, after which zig keeps all symbols.
    strip = "" if goos == "darwin" else " -extldflags=-s"
    subprocess.run(
        ["go", "build", "-buildmode=c-shared", "-buildvcs=false", "-ldflags", "-s -w -buildid=" + strip, "-o", str(library), "./python/native"],
        cwd=ROOT, env=env, check=True,
    )
    source = ROOT / "python" / "launcher" / "launcher.c"
    linking = ["-ldl"] if goos == "linux" else []
    subprocess.run([*shlex.split(cc), "-O2", "-g0", "-s", str(source), "-o", str(out), *linking], check=True)
    if goos == "darwin":
        check_macos(out)
        check_macos(library)
    return out, library


def check_macos(file: Path) -> None:
    """Refuses a file that no Mac would load: it must be of arm64, for the macOS of the
    wheel's tag or older, linked with libraries that every Mac has, and signed, if only
    by a checksum of each page."""
    data = file.read_bytes()
    magic, cpu, _, _, commands = struct.unpack_from("<5I", data)
    minimum, signed, at = None, False, 32
    for _ in range(commands):
        command, size = struct.unpack_from("<2I", data, at)
        if command == 0x32:  # LC_BUILD_VERSION
            minimum = struct.unpack_from("<2I", data, at + 8)
        elif command == 0xC:  # LC_LOAD_DYLIB
            name = data[at + struct.unpack_from("<I", data, at + 8)[0] : at + size].split(b"\0")[0]
            if not name.startswith((b"/usr/lib/", b"/System/Library/Frameworks/")):
                sys.exit(f"{file} is linked with {name.decode()}")
        elif command == 0x1D:  # LC_CODE_SIGNATURE, in big endian
            start, _ = struct.unpack_from("<2I", data, at + 8)
            start += struct.unpack_from(">I", data, start + 16)[0]
            _, _, _, flags, hashes, _, _, pages, limit = struct.unpack_from(">9I", data, start)
            length, kind, _, log = struct.unpack_from("4B", data, start + 36)
            bytes_of = 1 << log
            signed = flags & 2 != 0 and kind == 2 and pages == -(-limit // bytes_of) and all(
                hashlib.sha256(data[i * bytes_of : min((i + 1) * bytes_of, limit)]).digest()
                == data[start + hashes + i * length : start + hashes + (i + 1) * length]
                for i in range(pages)
            )
        at += size
    if (magic, cpu, minimum, signed) != (0xFEEDFACF, 0x0100000C, (1, 14 << 16), True):
        sys.exit(f"{file} is not what a Mac loads: magic {magic:#x}, processor {cpu:#x}, platform and minimum {minimum}, signed {signed}")


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
        ("Requires-Dist", "numpy>=1.24"),
        ("Requires-Dist", "onnxruntime>=1.29,<2"),
        ("Provides-Extra", "all"),
        ("Requires-Dist", 'pandas; extra == "all"'),
        ("Requires-Dist", 'scikit-learn>=1.6; extra == "all"'),
        ("Requires-Dist", 'tqdm; extra == "all"'),
        ("Provides-Extra", "quantise"),
        ("Requires-Dist", 'onnx>=1.16; extra == "quantise"'),
        ("Requires-Dist", 'sympy; extra == "quantise"'),
        ("Description-Content-Type", "text/markdown"),
    ]:
        m[name] = value
    text = "".join(f"{k}: {v}\n" for k, v in m.items())
    return (text + "\n" + (ROOT / "python" / "README.md").read_text(encoding="utf-8")).encode()


def wheel(platform: str, version: str, program: Path, library: Path, into: Path, complete: bool = True) -> Path:
    """Writes a wheel. Unless it must be complete, it lacks what `make setup` has not brought:
    the backbone and the pictures."""
    info = f"mlrbfn-{version}.dist-info"
    files: dict[str, bytes] = {
        f"mlrbfn-{version}.data/scripts/{program.name}": program.read_bytes(),
        f"{info}/METADATA": metadata(version),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: mlrbfn scripts/wheels.py\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n".encode(),
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    for file in [library, *(ROOT / "python" / "mlrbfn").glob("*.py"), ROOT / "python" / "mlrbfn" / "py.typed"]:
        files[f"mlrbfn/{file.name}"] = file.read_bytes()
    model = ROOT / "models" / "efficientnet-lite0"
    if not complete and not (model / "model.onnx").exists():
        print(f"there is no {model}/model.onnx, and the wheel has no backbone: `make setup` brings it", flush=True)
    else:
        for name in ("model.onnx", "preprocessor_config.json", "README.md"):
            files[f"mlrbfn/models/{model.name}/{name}"] = (model / name).read_bytes()
    for name in PICTURES:
        if complete or (ROOT / ".setup" / "photos" / name).exists():
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
        wheel(platform, version, *build(platform, work), args.into)


if __name__ == "__main__":
    main()
