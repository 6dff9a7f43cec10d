"""What `mlrbfn.spark` and `mlrbfn.ray` have in common: a column of images or of features in
an Arrow table becomes another column, in whatever process the engine has started."""

from __future__ import annotations

import itertools
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import _native
from ._detector import Detector
from ._errors import Error
from ._features import Features

MOST_BYTES = 64 << 20  # of encoded images that are judged together
MOST_IMAGES = 256

_opened: dict[str, Detector] = {}  # one of each in a process, whatever its tasks


def arrow() -> Any:
    """Returns PyArrow, which all engines bring."""
    _native.optional("pyarrow.compute", "mlrbfn.spark and mlrbfn.ray")
    return sys.modules["pyarrow"]


def verdict_type() -> Any:
    """The type of a verdict: what `detect` says, and an error."""
    pa = arrow()
    return pa.struct(
        [("class", pa.string()), ("label", pa.int64()), ("confidence", pa.float64()), ("score", pa.float64()), ("ood", pa.bool_()), ("p_value", pa.float64()), ("error", pa.string())]
    )


def features_type() -> Any:
    """The type of the features of an image, and an error."""
    pa = arrow()
    return pa.struct([("features", pa.list_(pa.float32())), ("error", pa.string())])


class Work:
    """What is done with a column. It is sent to the processes that do it: a detector as its
    file's bytes, unless it is named by a path that they see."""

    def __init__(self, what: str, column: str, given: Any, options: dict[str, Any], find: Callable[[str], str] = str) -> None:
        self.what, self.column, self.options, self.find = what, column, options, find
        self.given = given if isinstance(given, Detector) else os.fspath(given)

    def __call__(self, table: Any, **more: Any) -> Any:
        """Returns the new column for an Arrow table or batch."""
        pa = arrow()
        column: Any = table
        for i, name in enumerate(self.column.split(".")):
            column = column.column(name) if i == 0 else _flat(pa, column).field(name)
        column = _flat(pa, column)
        parts = [self._judged(column)] if self.what == "judge" else [self._of_images(images, {**more, **self.options}) for images in _cut(column)]
        return pa.concat_arrays(parts) if parts else pa.array([], features_type() if self.what == "extract" else verdict_type())

    def _detector(self) -> Detector:
        if isinstance(self.given, Detector):
            return self.given
        file = self.find(str(self.given))
        stamp = f"{file} {os.stat(file).st_mtime_ns}"
        if stamp not in _opened:
            _opened[stamp] = Detector.load(file)
        return _opened[stamp]

    def _judged(self, column: Any) -> Any:
        """Judges features; a row without any, or of another length, is an error."""
        pa, detector = arrow(), self._detector()
        d = detector.n_features_in_
        lengths = np.array([-1 if n is None else n for n in pa.compute.list_value_length(column).to_pylist()])
        good = lengths == d
        x = column.filter(pa.array(good)).flatten().to_numpy(zero_copy_only=False).reshape(-1, d)
        usable = np.isfinite(x).all(axis=1)
        good[np.flatnonzero(good)[~usable]] = False
        rows = iter(_rows(detector.judge(x[usable]))) if usable.any() else iter(())
        return pa.array([next(rows) if ok else _failed(f"these are no {d} finite features") for ok in good], verdict_type())

    def _of_images(self, images: list[bytes | str], options: dict[str, Any]) -> Any:
        """Judges or embeds the bytes of images; a text is why an image has none."""
        pa = arrow()
        read = [image for image in images if isinstance(image, bytes)]
        done: Iterator[dict[str, Any]] = iter(())
        if read and self.what == "detect":
            done = iter(_rows(self._detector().detect(read, errors="ignore", **options)))
        elif read:
            done = _embedded(read, self.find(str(self.given)), options)
        if self.what == "detect":
            return pa.array([next(done) if isinstance(image, bytes) else _failed(image) for image in images], verdict_type())
        return pa.array([next(done) if isinstance(image, bytes) else {"features": None, "error": image} for image in images], features_type())


def _flat(pa: Any, column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _cut(column: Any) -> Iterator[list[bytes | str]]:
    """Yields images as the bytes of files, so many at a time that memory does not depend on
    the engine's batches. An image that is not there is the reason."""
    some: list[bytes | str] = []
    size = 0
    for value in column:
        some.append(_read(value.as_py()))
        size += len(some[-1])
        if size >= MOST_BYTES or len(some) >= MOST_IMAGES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _read(value: Any) -> bytes | str:
    if isinstance(value, dict):  # as Hugging Face and binary files have it
        value = value.get("bytes") or value.get("content") or value.get("path")
    if value is None or isinstance(value, bytes):
        return value or "there is no image"
    try:
        if "://" in value or value.startswith("file:"):
            with urllib.request.urlopen(value, timeout=60) as response:
                data: bytes = response.read()
                return data
        with open(value, "rb") as f:
            return f.read()
    except (OSError, ValueError) as error:
        return str(error) or "it cannot be read"


def _failed(error: str) -> dict[str, Any]:
    return {"ood": True, "error": error}  # as of Verdicts, so that no filter lets it pass


def _rows(verdicts: Any) -> list[dict[str, Any]]:
    rows = []
    for i, ok in enumerate(verdicts.ok):
        v = verdicts[i]
        one = {name: v[name] if name in ("class", "error") else v[name].item() for name in verdicts.dtype.names if name != "path"}
        rows.append({**one, "class": str(one["class"])} if ok else _failed(v["error"]))
    return rows


def _embedded(images: list[bytes], model: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the features of the bytes of images: those of a feature set for this once. A
    shard of all of them may be empty, where a set may not."""
    room = _native.Room()
    out = os.path.join(room.name, "features")
    arguments = {
        "images": [{"buffer": i} for i in range(len(images))],
        "root": "",
        "labels": [-1] * len(images),
        "classes": [],
        "model": _native.encode(model),
        "out": _native.encode(out),
        "settings": _native.settings({**options, "shard": "1/1"}),
    }
    told = _native.call("embed", arguments, [np.frombuffer(image, np.uint8) for image in images])
    errors = {_native.decode(f["path"]): f["error"] for f in told["failed"]}
    features = Features(out)
    rows = dict(zip(features.paths, features.x, strict=True)) if len(features) else {}
    for name in (f"{i:06d}" for i in range(len(images))):
        yield {"features": rows.get(name), "error": errors.get(name)}
    del rows, features
    room.close()


def collect(rows: Iterator[tuple[Any, str | None, bytes]], out: str | os.PathLike[str], model: str | os.PathLike[str] | Features) -> Features:
    """Writes rows of path, label and the bytes of float32 features as a feature set, with a
    few of them in memory at a time."""
    pa = arrow()
    parquet = _native.optional("pyarrow.parquet", "a feature set of an engine's rows")
    from ._features import embed
    from ._program import run

    probe = model if isinstance(model, Features) else embed(np.zeros((8, 8, 3), np.uint8), model=model, progress=False)
    with open(os.path.join(probe.folder, "features.json"), encoding="utf-8") as f:
        about = f.read()
    schema = pa.schema([("path", pa.string()), ("label", pa.string()), ("embedding", pa.list_(pa.float32()))], {"mlrbfn": about})
    room = _native.Room()
    file = os.path.join(os.path.dirname(os.path.abspath(out)), f".{os.path.basename(out)}.parquet")
    try:
        with parquet.ParquetWriter(file, schema) as writer:
            for some in _some(enumerate(rows), 1 << 12):
                values = [np.frombuffer(x, np.float32) for _, (_, _, x) in some]
                if any(len(x) != probe.shape[1] for x in values):
                    raise Error(f"a row has {next(len(x) for x in values if len(x) != probe.shape[1])} features, and the model's have {probe.shape[1]}")
                paths = [path if path is not None else f"row-{i}" for i, (path, _, _) in some]
                writer.write_table(pa.table([paths, [label for _, (_, label, _) in some], values], schema=schema))
        run("convert", {"out": out, "force": True}, [file])
    finally:
        if os.path.exists(file):
            os.remove(file)
        room.close()
    return Features(out)


def _some(items: Iterator[Any], most: int) -> Iterator[list[Any]]:
    return iter(lambda: list(itertools.islice(items, most)), [])
