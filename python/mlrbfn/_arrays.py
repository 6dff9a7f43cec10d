"""Turns what users have into arrays that the library reads in place."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ._errors import OptionError


def _array(x: Any, what: str) -> np.ndarray:
    """Returns x as an array, in place where NumPy can: a tensor of PyTorch without its
    gradient, and in float32 if it is of bfloat16, which NumPy lacks."""
    if np.ma.is_masked(x):
        raise OptionError(f"the {what} have values that are masked: fill them (x.filled), or leave them out")
    if hasattr(x, "detach"):
        x = x.detach()
        if str(getattr(x, "dtype", "")) == "torch.bfloat16":
            x = x.float()
    try:
        if not hasattr(x, "__array__") and hasattr(x, "__dlpack__"):
            x = np.from_dlpack(x)
        return np.asarray(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise OptionError(f"NumPy cannot read the {what}: {error}") from None


def plain(x: Any) -> Any:
    """Returns a tensor of PyTorch as an array. All else stays as it is, for scikit-learn
    to look at."""
    return _array(x, "tensor") if hasattr(x, "detach") else x


def rows(x: Any, columns: int | None = None) -> np.ndarray:
    """Returns features as float32 [n, d] in C order: x itself, without a copy, if it is
    that already. NumPy arrays, PyTorch tensors on the CPU and all that has __array__ or
    __dlpack__ are taken; other numbers are converted."""
    array = _array(x, "features")
    if array.dtype.kind not in "fiub":
        raise OptionError(f"features are numbers, and these are of the type {array.dtype}")
    if array.ndim != 2:
        raise OptionError(f"features have two dimensions, a row for each image, and these have the shape {array.shape}")
    if columns is not None and array.shape[1] != columns:
        raise OptionError(f"the detector reads rows of {columns} features, and these have {array.shape[1]}")
    if array.shape[1] == 0:
        raise OptionError("the rows of features are empty")
    with np.errstate(over="ignore"):  # the library says which value is too large
        return np.require(array, np.float32, ["C", "A"])


def labels(y: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of each row's class as int64 [n], -1 for what has no label, and the
    classes, sorted: None, NaN, pandas' NA, what is masked, and -1 in an array of whole numbers,
    as `Features.labels` has it, unless the labels are -1 and 1 alone: two classes, as
    scikit-learn has them."""
    masked = np.ma.getmaskarray(y) if np.ma.is_masked(y) else None
    y = _array(y if masked is None else y.data, "labels")
    if y.shape != (n,):
        raise OptionError(f"there are {n} rows of features, and the labels have the shape {y.shape}")
    if y.dtype.kind == "f":
        known = ~np.isnan(y)
    elif y.dtype.kind == "O":
        nothing = getattr(sys.modules.get("pandas"), "NA", None)
        known = np.array([v is not None and v is not nothing and v == v for v in y], dtype=bool)
    elif y.dtype.kind == "i":
        known = (y != -1) | np.array_equal(np.unique(y), [-1, 1])
    else:
        known = np.ones(n, dtype=bool)
    if masked is not None:
        known &= ~masked
    index = np.full(n, -1, np.int64)
    try:
        classes, index[known] = np.unique(y[known], return_inverse=True)
    except TypeError:
        raise OptionError("labels are of different types, such as numbers and text") from None
    if len(classes) == 0:
        raise OptionError("no row has a label")
    return index, classes
