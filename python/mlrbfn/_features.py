"""Feature sets: the features that a model computed for images."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _arrays, _images, _native, _pages
from ._errors import Errors, FeaturesError, OptionError, check_errors, tell_unreadable
from ._signatures import written_out

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack

    from ._options import EmbedOptions, ExtractOptions


class Features:
    """A feature set on disk; `load_features` and `extract` make it.

    ``x`` is a memory map, float32 [n, d]: nothing is read before it is used, and it may be
    larger than memory. ``labels`` are indices into ``classes``, -1 for an image without a
    label; ``y`` are their names.
    """

    _room: _native.Room | None = None  # with the folder of features that nobody named one for

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.path.abspath(folder)
        self._opened = self._stamp()
        about = _native.call("features", {"folder": _native.encode(folder)}, quick=True)
        self.classes: list[str] = about["classes"]
        self.root: str = _native.decode(about["root"])
        self.model: str = _native.decode(about["model"])
        self.fingerprint: str = about["fingerprint"]
        self._shape: tuple[int, int] = (about["n"], about["d"])
        self._logits: int = about["logits"]

    def _stamp(self) -> Any:
        """Returns what is another when the folder is written anew."""
        try:
            parts = os.path.join(self.folder, "parts.json")  # of a set of parts
            with open(parts if os.path.exists(parts) else os.path.join(self.folder, "features.json"), "rb") as f:
                return f.read()
        except OSError:
            folder = os.scandir(self.folder) if os.path.isdir(self.folder) else []
            return sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in folder if e.name.endswith(".npy"))

    def unchanged(self) -> str:
        """Returns the folder, which must still be what was opened: the rows of a folder that
        is written anew are other images."""
        if self._stamp() != self._opened:
            raise FeaturesError(f"{self.folder} was written anew after it was opened: open it again with load_features")
        return self.folder

    @cached_property
    def x(self) -> np.ndarray:
        """The features, float32 [n, d]."""
        try:
            x = np.load(os.path.join(self.unchanged(), "features.npy"), mmap_mode="r")
        except (OSError, ValueError):
            x = None
        if x is not None and x.dtype == np.float32 and x.shape == self._shape:
            return x
        x = np.empty(self._shape, np.float32)
        self._read([x])
        return x

    @cached_property
    def labels(self) -> np.ndarray:
        """The class of each row as an index into `classes`, int64 [n]; -1 for none."""
        labels = np.empty(len(self), np.int64)
        self._read([np.empty(0, np.float32), labels])
        return labels

    @cached_property
    def logits(self) -> np.ndarray | None:
        """The logits of the model's own classifier, float32 [n, c], or None."""
        if not self._logits:
            return None
        logits = np.empty((len(self), self._logits), np.float32)
        self._read([np.empty(0, np.float32), np.empty(0, np.int64), logits])
        return logits

    def _read(self, buffers: list[np.ndarray]) -> None:
        _native.call("read", {"folder": _native.encode(self.unchanged())}, buffers)

    @property
    def y(self) -> np.ndarray:
        """The name of each row's class, None for none."""
        return np.array([*self.classes, None], dtype=object)[self.labels]

    @cached_property
    def _images(self) -> dict[str, Any]:
        images: dict[str, Any] = _native.call("paths", {"folder": _native.encode(self.unchanged())})
        return images

    @cached_property
    def paths(self) -> list[str]:
        """The path of each row's image below `root`; empty if the set does not have them."""
        return [_native.decode(p) for p in self._images["paths"]]

    @cached_property
    def errors(self) -> dict[str, str]:
        """The images that could not be read, and why."""
        return {_native.decode(e["path"]): e["error"] for e in self._images["errors"]}

    def __len__(self) -> int:
        return self._shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy:
            return np.array(self.x, dtype=dtype)
        return np.asarray(self.x, dtype=dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of features of a row."""
        return self._shape

    def to_pandas(self) -> pandas.DataFrame:
        """Returns the paths and classes of the rows as a data frame."""
        pandas = _native.optional("pandas", "to_pandas")
        return pandas.DataFrame({"path": self.paths or None, "class": self.y}, index=range(len(self)))

    def _repr_html_(self) -> str:
        return _pages.of_features(self)

    def __repr__(self) -> str:
        return f"Features({self.folder!r}: {len(self)} × {self._shape[1]}, {len(self.classes)} classes)"


def load_features(folder: str | os.PathLike[str]) -> Features:
    """Opens the feature set in a folder, and checks it as the program does.

    Any folder with `features.npy` (and `labels.npy`) is one too:

    >>> import os, tempfile, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> np.save(os.path.join(folder, "features.npy"), np.ones((4, 3), np.float32))
    >>> np.save(os.path.join(folder, "labels.npy"), np.array([0, 0, 1, 1]))
    >>> features = load_features(folder)
    >>> features.x.shape, features.classes, features.labels.tolist()
    ((4, 3), ['0', '1'], [0, 0, 1, 1])
    """
    return Features(folder)


@written_out
def extract(
    images: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] = "efficientnet-lite0",
    errors: Errors = "warn",
    progress: bool | None = None,
    **options: Unpack[ExtractOptions],
) -> Features:
    """Computes the features of a folder of images with an ONNX model and writes them as a
    feature set to the folder out. In images/class/…/image the folders are the labels.

    Calling it again processes only images that are new or have changed; after Ctrl-C the
    same call continues. model is the name of a model that comes with the package, the
    folder of one, or "pixels". options are those of `mlrbfn extract`, with underscores:
    size="32", exif="apply", shard="1/4", device="cuda", workers=4.

    Images that cannot be read are a warning, and listed in the result's `errors`; an exception
    at the end with errors="raise", and listed alone with "ignore".
    """
    check_errors(errors)
    arguments = {"images": _native.encode(images), "model": _native.encode(model), "out": _native.encode(out), "settings": _native.settings({**options})}
    return _extracted(_native.call("extract", arguments, progress=progress), out, errors)


@written_out
def embed(
    images: Any,
    y: Any = None,
    *,
    model: str | os.PathLike[str] = "efficientnet-lite0",
    out: str | os.PathLike[str] | None = None,
    errors: Errors = "warn",
    progress: bool | None = None,
    **options: Unpack[EmbedOptions],
) -> Features:
    """Computes the features of images from anywhere: paths, bytes of image files, PIL images,
    arrays, batches, tensors that are not normalised, a column of a data frame, a data set or a
    DataLoader. Labels are y, or those that a data set or DataLoader gives with its images.

    The model prepares the images itself, and the features have its fingerprint, so that a
    detector trained on them judges images. out is the folder of the feature set; without it
    the features last as long as the result. More than 256 MB of pixels are put aside on the
    disk meanwhile. A folder of images is for `extract`.
    """
    check_errors(errors)
    room = _native.Room()
    kept = _images.Kept(room.name)
    pictures: list[dict[str, Any]] = []
    paths: list[str] = []
    given: list[Any] = []
    for at, (image, label) in enumerate(_images.flat(images)):
        given.append(label)
        if isinstance(image, (str, os.PathLike)):
            paths.append(os.path.abspath(image))
            pictures.append({"path": _native.encode(paths[-1])})
        else:
            data, size = _images.pixels(image, at)
            pictures.append({"buffer": kept.keep(data), **size})
    if not pictures:
        raise OptionError("there are no images")
    if folder := next(filter(os.path.isdir, paths), None):
        raise OptionError(f"{folder} is a folder: extract computes the features of a folder of images")
    if len(set(paths)) < len(paths):
        raise OptionError("an image is named twice")
    labels, classes = np.full(len(pictures), -1), np.empty(0)
    if y is not None or any(label is not None for label in given):
        labels, classes = _arrays.labels(np.array(given, dtype=object) if y is None else y, len(pictures))
    arguments = {
        "images": pictures,
        "root": _native.encode(os.path.commonpath([os.path.dirname(p) for p in paths]) if paths else ""),
        "labels": labels.tolist(),
        "classes": [str(c) for c in classes],
        "model": _native.encode(model),
        "out": _native.encode(out or os.path.join(room.name, "features")),
        "settings": _native.settings({**options}),
    }
    features = _extracted(_native.call("embed", arguments, kept.buffers(), progress=progress), out or os.path.join(room.name, "features"), errors)
    if not out:
        features._room = room
    return features


def _extracted(result: dict[str, Any], out: str | os.PathLike[str], errors: Errors) -> Features:
    features = Features(out)
    if result["failed"]:
        first = result["failed"][0]
        tell_unreadable(errors, len(result["failed"]), f"all listed in .errors; the first: {_native.decode(first['path'])}: {first['error']}")
    return features
