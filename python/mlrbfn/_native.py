"""Calls the shared library. Nothing here is for users."""

from __future__ import annotations

import base64
import ctypes
import importlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ._errors import KINDS, Error, ForkError, warn

StrPath = "str | os.PathLike[str]"


class _Buffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_int64)]


_library: ctypes.CDLL | None = None
_loading = threading.Lock()
_forked = False
_numbers = itertools.count(1)


def _after_fork() -> None:
    global _forked, _loading
    _forked = _library is not None
    _loading = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def library_file() -> Path:
    """Returns the path of the shared library."""
    name = {"win32": "mlrbfn.dll", "darwin": "libmlrbfn.dylib"}.get(sys.platform, "libmlrbfn.so")
    return Path(os.environ.get("MLRBFN_LIBRARY") or Path(__file__).with_name(name))


def check_fork() -> None:
    """Refuses to go on in a process that was forked from one with the library."""
    if _forked:
        raise ForkError(
            "this process was forked from one in which mlrbfn was in use, and Go does not work in such a process: "
            'start processes by "spawn" or "forkserver" (multiprocessing.get_context), or use joblib as it is (loky), whose processes are fresh'
        )


def library() -> ctypes.CDLL:
    """Returns the shared library, which the first call loads."""
    global _library
    check_fork()
    with _loading:
        if _library is None:
            file = library_file()
            try:
                lib = ctypes.CDLL(str(file))
            except OSError as error:
                raise Error(f"the library {file} of mlrbfn cannot be loaded ({error}); install mlrbfn again, or in a checkout run `make python`") from None
            lib.mlrbfn_call.restype = ctypes.c_void_p
            lib.mlrbfn_call.argtypes = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Buffer), ctypes.c_int64]
            lib.mlrbfn_progress.restype = ctypes.c_void_p
            lib.mlrbfn_progress.argtypes = [ctypes.c_int64]
            lib.mlrbfn_cancel.restype = None
            lib.mlrbfn_cancel.argtypes = [ctypes.c_int64]
            lib.mlrbfn_free.restype = None
            lib.mlrbfn_free.argtypes = [ctypes.c_void_p]
            # The library sees the environment of the time when the process began.
            from . import _environment

            now = _environment()
            names = ("MLRBFN_MODELS", "MLRBFN_KERNELS", "ONNXRUNTIME_SHARED_LIBRARY_PATH", "TMPDIR", "TMP", "TEMP")
            answer = _once(lib, next(_numbers), "setup", {"env": {name: now[name] for name in names if name in now}}, [])
            if "error" in answer:
                raise Error(answer["error"])
            _library = lib
    return _library


def _text(lib: ctypes.CDLL, pointer: int) -> str:
    try:
        return ctypes.string_at(pointer).decode()
    finally:
        lib.mlrbfn_free(pointer)


def _once(lib: ctypes.CDLL, number: int, function: str, arguments: dict[str, Any], buffers: Sequence[np.ndarray]) -> dict[str, Any]:
    """Calls a function in this thread. ctypes releases the GIL meanwhile."""
    memory = (_Buffer * len(buffers))(*(_Buffer(b.ctypes.data, b.nbytes) for b in buffers))
    text = _text(lib, lib.mlrbfn_call(number, function.encode(), json.dumps(arguments).encode(), memory, len(buffers)))
    answer: dict[str, Any] = json.loads(text)
    return answer


def call(function: str, arguments: dict[str, Any], buffers: Sequence[np.ndarray] = (), *, quick: bool = False, progress: bool | None = False) -> Any:
    """Calls a function and returns its result. Unless it is quick, Ctrl-C ends it, and
    its progress can be shown."""
    lib = library()
    number = next(_numbers)
    main = threading.current_thread() is threading.main_thread()
    show = _progress_bar(progress)
    if quick or not (main or show):
        answer = _once(lib, number, function, arguments, buffers)
    else:
        answer = _watched(lib, number, function, arguments, buffers, show)
    if "error" in answer:
        if answer["kind"] == "interrupted":
            raise KeyboardInterrupt
        raise KINDS.get(answer["kind"], Error)(answer["error"])
    for text in answer["warnings"]:
        warn(text)
    return answer["result"]


def _watched(lib: ctypes.CDLL, number: int, function: str, arguments: dict[str, Any], buffers: Sequence[np.ndarray], show: Callable[[], Any] | None) -> dict[str, Any]:
    """Calls a function in another thread, so that this one notices Ctrl-C."""
    outcome: list[Any] = []
    ready = threading.Event()

    def work() -> None:
        try:
            outcome.append(_once(lib, number, function, arguments, buffers))  # holds the buffers
        except BaseException as error:
            outcome.append(error)
        finally:
            ready.set()

    bar = show() if show else None
    threading.Thread(target=work, name=f"mlrbfn {function}", daemon=True).start()
    try:
        while not ready.wait(0.1):
            if bar:
                bar.update_to(json.loads(_text(lib, lib.mlrbfn_progress(number))))
    except BaseException:
        lib.mlrbfn_cancel(number)
        ready.wait()  # until nothing uses the arrays; a second Ctrl-C does not wait
        raise
    finally:
        if bar:
            bar.close()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    answer: dict[str, Any] = outcome[0]
    return answer


def _progress_bar(progress: bool | None) -> Callable[[], Any] | None:
    """Returns what makes a progress bar, or None where there is to be none: progress
    says so, or, where it is None, tqdm is missing or nobody looks."""
    if progress is False or progress is None and not (sys.stderr is not None and sys.stderr.isatty()) and "ipykernel" not in sys.modules:
        return None
    try:
        tqdm = optional("tqdm.auto", "progress=True").tqdm
    except ImportError:
        if progress:
            raise
        return None

    class Bar:
        what = ""
        bar: Any = None

        def update_to(self, now: dict[str, Any]) -> None:
            if not now.get("what"):
                return
            total = now["total"] if now["total"] > 0 else None
            form = None if total or now["done"] > 0 else "{desc}: {elapsed}"
            if self.bar is None or now["what"] != self.what:
                self.close()
                self.what = now["what"]
                self.bar = tqdm(desc=self.what, total=total, leave=False, bar_format=form)
            self.bar.bar_format = form
            if total:
                self.bar.total = total
            self.bar.n = now["done"]
            self.bar.set_postfix_str(now["note"], refresh=False)
            self.bar.refresh()

        def close(self) -> None:
            if self.bar is not None:
                self.bar.close()
                self.bar = None

    return Bar


def optional(name: str, what: str) -> Any:
    """Imports a package that only some functions need, what among them."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{what} needs {name.split('.')[0]}: pip install {name.split('.')[0]}") from error


class Room:
    """A temporary folder, which goes when nobody has the room any more."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="mlrbfn-")
        self.close = weakref.finalize(self, _remove, self.name, os.getpid())


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # and not that of a process that was forked
        shutil.rmtree(folder, ignore_errors=True)


def encode(path: Any) -> str:
    """Returns a path as the library reads it."""
    return base64.b64encode(os.fsencode(path)).decode()


def decode(path: str) -> str:
    """The inverse of encode."""
    return os.fsdecode(base64.b64decode(path))


def settings(options: dict[str, Any]) -> dict[str, list[str]]:
    """Returns options as the library reads them, None ones left out."""

    def text(value: Any) -> str:
        if isinstance(value, (bool, np.bool_)):
            return "true" if value else "false"
        if isinstance(value, (list, tuple, range, np.ndarray)):
            return ",".join(text(v) for v in value)
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        return str(value)

    def texts(value: Any) -> list[str]:
        if isinstance(value, (list, tuple)) and all(isinstance(v, (str, os.PathLike)) for v in value):  # each is given
            return [os.fspath(v) for v in value]
        return [text(value)]

    return {name: texts(value) for name, value in options.items() if value is not None}
