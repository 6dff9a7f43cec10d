"""Takes apart what users call images."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from . import _arrays, _native
from ._errors import OptionError, warn

_CHANNELS = (1, 3, 4)


def flat(images: Any) -> Iterator[tuple[Any, Any]]:
    """Yields images one by one, each with its label, None where none is given: a path, the
    bytes of a file, a PIL image, or an array of bytes (uint8) [height, width, 3]. images may be
    one of them, an open file, a batch [n, height, width, 3] or [n, 3, height, width], or any
    collection of these: a column of a data frame, a DataLoader, a generator, lists of lists.
    A pair of images and numbers, as data sets and DataLoaders give, is images with labels."""
    if _is_one(images):
        yield images, None
    elif hasattr(images, "read"):
        yield images.read(), None
    elif hasattr(images, "columns") and hasattr(images, "iloc"):
        raise OptionError(f"a data frame has several columns: give the one with the images, such as frame[{str(images.columns[0])!r}]")
    elif isinstance(images, Mapping):
        raise OptionError(f"a dictionary has several entries: give pairs of the image and its label, such as ((s[{next(iter(images), 'image')!r}], s['label']) for s in loader)")
    elif isinstance(images, np.ndarray) or hasattr(images, "detach") or hasattr(images, "__dlpack__") or hasattr(images, "__array__"):
        yield from _of_array(images)
    elif (labels := _labels_of_pair(images)) is not None:
        several = [image for image, _ in flat(images[0])]
        if len(several) != len(labels):
            raise OptionError(f"there are {len(several)} images, and {len(labels)} labels beside them")
        yield from zip(several, labels, strict=True)
    elif isinstance(images, Iterable) or hasattr(images, "__getitem__") and hasattr(images, "__len__"):
        # A data set with __getitem__ alone need not raise IndexError at its end.
        for image in images if isinstance(images, Iterable) else (images[i] for i in range(len(images))):
            yield from flat(image)
    else:
        yield images, None  # pixels says what is wrong with it


def is_picture(image: Any) -> bool:
    """Tells whether it is an image of PIL."""
    return hasattr(image, "convert") and hasattr(image, "tobytes") and hasattr(image, "size")


def _is_one(image: Any) -> bool:
    return isinstance(image, (str, bytes, bytearray, memoryview, os.PathLike)) or is_picture(image)


def _of_array(images: Any) -> Iterator[tuple[Any, Any]]:
    tensor = hasattr(images, "detach")
    array = _arrays._array(images, "images")
    if array.dtype.kind in "OUST":
        for image in array.ravel():
            yield from flat(str(image) if isinstance(image, np.str_) else image)
        return
    if array.dtype.kind == "f" and array.ndim > 2:  # with two they may be features
        array = _bytes(array)
    last = array.ndim - 1
    first = array.ndim - 3
    if array.ndim >= 3 and array.shape[first] in (1, 3) and (tensor or array.ndim == 4 and array.shape[last] not in _CHANNELS):
        array = np.moveaxis(array, first, last)
    if array.ndim == 4 and array.shape[last] in _CHANNELS:
        yield from ((image, None) for image in array)
    else:
        yield array, None


def _bytes(array: np.ndarray) -> np.ndarray:
    """Returns pixels from 0 to 1 as bytes, as torchvision's ToTensor made them."""
    if array.size == 0 or not (array.min() >= 0 and array.max() <= 1):
        raise OptionError(
            "an array of images has pixels that are not from 0 to 1: give images before they are normalised, as bytes (uint8) or from 0 to 1, since the model's own preprocessing comes after"
        )
    return np.rint(array.astype(np.float32) * 255).astype(np.uint8)


def _labels_of_pair(pair: Any) -> Any:
    """Returns the labels of a pair of images and labels, or None."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or isinstance(pair[1], (bool, os.PathLike)):
        return None
    images, labels = pair
    text = isinstance(pair, tuple)  # in a list, text is the path of another image
    if isinstance(labels, (int, np.integer)):
        return [labels]
    if isinstance(labels, str):
        return [labels] if text and not isinstance(images, (str, os.PathLike)) else None
    if isinstance(labels, np.ndarray) or hasattr(labels, "detach"):
        labels = _arrays._array(labels, "labels")
        return np.atleast_1d(labels) if labels.ndim < 2 and labels.dtype.kind in ("iuUO" if text else "iu") else None
    if not isinstance(labels, (tuple, list)) or not labels:
        return None
    # A DataLoader leaves a batch's labels that are text in a tuple.
    if getattr(images, "ndim", 0) == 4 and len(images) == len(labels) and all(isinstance(v, str) for v in labels):
        return labels
    if (hasattr(images, "shape") or isinstance(images, (tuple, list))) and all(isinstance(v, (int, np.integer)) for v in labels):
        return labels
    return None


def pixels(image: Any, at: int) -> tuple[np.ndarray, dict[str, int]]:
    """Returns an image in memory as a buffer, with its size if it is decoded."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        return np.frombuffer(image, np.uint8), {}
    turn = 0
    if is_picture(image):
        getattr(image, "load", bool)()  # which turns a TIFF upright, and takes its orientation away
        if image.mode.startswith("I;16"):  # as a file, which the detector's own setting reads
            file = io.BytesIO()
            image.save(file, "PNG", exif=image.getexif())
            return np.frombuffer(file.getvalue(), np.uint8), {}
        turn = image.getexif().get(0x0112, 0)
        image = np.asarray(image.convert("RGB"))
    if np.ma.is_masked(image):
        raise OptionError(f"image {at} has pixels that are masked: fill them")
    array = np.asarray(image)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.ndim == 3 and array.shape[2] not in _CHANNELS or array.size == 0:
        raise OptionError(
            f"image {at} is no path, no bytes of an image file, no PIL image, and no array of bytes (uint8) [height, width, 3]; it has the type {array.dtype} and the shape {array.shape}"
        )
    if array.ndim == 2:
        array = array[:, :, None]
    if array.shape[2] == 1:
        array = np.repeat(array, 3, axis=2)
    if array.shape[2] == 4 and (array[:, :, 3] != 255).any():
        warn("an array of four channels is taken for RGBA, and its transparency is dropped; give a CMYK image as a file, or as an image of PIL")
    array = np.require(array[:, :, :3], np.uint8, ["C"])
    return array, {"height": array.shape[0], "width": array.shape[1], "turn": turn if isinstance(turn, int) else 0}


class Kept:
    """Images in memory as buffers, which lie in a file of the folder once they are many."""

    most = 256 << 20  # bytes in memory

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "images")
        self.memory: list[np.ndarray] = []
        self.bytes = 0
        self.parts: list[tuple[int, int]] = []  # of the file: where they begin, and their bytes
        self.file: Any = None

    def keep(self, data: np.ndarray) -> int:
        """Keeps a buffer, and returns its number."""
        if self.bytes < self.most:
            self.bytes += data.nbytes
            self.memory.append(data)
            return len(self.memory) - 1
        if self.file is None:
            self.file = open(self.path, "wb")  # noqa: SIM115
        self.parts.append((self.file.tell(), data.nbytes))
        self.file.write(data.data)
        return len(self.memory) + len(self.parts) - 1

    def buffers(self) -> list[np.ndarray]:
        if self.file is None:
            return self.memory
        self.file.close()
        whole = np.memmap(self.path, np.uint8, "r")
        return [*self.memory, *(whole[at : at + n] for at, n in self.parts)]


def files(images: Any, folder: str) -> list[str]:
    """Returns images as files: those in memory are written to the folder."""
    paths = []
    for at, (image, _) in enumerate(flat(images)):
        if isinstance(image, (str, os.PathLike)):
            paths.append(os.fspath(image))
            continue
        paths.append(os.path.join(folder, f"{at:06d}.png"))
        data, size = pixels(image, at)
        if size:
            picture = _native.optional("PIL.Image", "a page of images in memory").fromarray(data)
            exif = picture.getexif()
            if size.get("turn"):
                exif[0x0112] = size["turn"]
            picture.save(paths[-1], exif=exif)
        else:
            data.tofile(paths[-1])
    return paths
