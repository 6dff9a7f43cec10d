"""Exceptions and warnings of mlrbfn. Their texts are the program's own words."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Literal


class Error(Exception):
    """What mlrbfn reports; all other exceptions of the package are kinds of it."""


class OptionError(Error, ValueError):
    """An option, or the shape or a value of an array, cannot be."""


class NotFoundError(Error, FileNotFoundError):
    """A file or folder is not there."""


class AccessError(Error, PermissionError):
    """A file or folder may not be read or written."""


class DetectorError(Error):
    """A file is no detector, is damaged, or lacks the signature that it must have."""


class FeaturesError(Error):
    """A folder is no feature set, is damaged, or is of another model than it must be."""


class ModelError(Error):
    """A model is not the one that a detector's features come from."""


class OnnxruntimeError(Error):
    """The onnxruntime library is missing or cannot be used."""


class DivergedError(Error):
    """The loss of a training diverged."""


class ForkError(Error):
    """The process was forked after mlrbfn was used in it."""


class DataWarning(UserWarning):
    """What a person should know of their images, features or training."""


KINDS: dict[str, type[Error]] = {
    "value": OptionError,
    "missing": NotFoundError,
    "permission": AccessError,
    "detector": DetectorError,
    "features": FeaturesError,
    "model": ModelError,
    "runtime": OnnxruntimeError,
    "diverged": DivergedError,
}

Errors = Literal["warn", "raise", "ignore"]


def check_errors(errors: str) -> None:
    """Checks what is to be done about images that cannot be read."""
    if errors not in ("warn", "raise", "ignore"):
        raise OptionError(f'errors is "warn", "raise" or "ignore", and not {errors!r}')


def tell_unreadable(errors: str, n: int, text: str) -> None:
    """Warns of n images that could not be read, or raises."""
    text = f"{n} {'image' if n == 1 else 'images'} could not be read, {text}"
    if errors == "raise":
        raise Error(text)
    if errors == "warn":
        warn(text)


def warn(text: str) -> None:
    """Warns who called the package."""
    level, frame = 1, sys._getframe(1)
    here = os.path.dirname(__file__)
    while frame is not None and os.path.dirname(frame.f_code.co_filename) == here:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, DataWarning, stacklevel=level + 1)
