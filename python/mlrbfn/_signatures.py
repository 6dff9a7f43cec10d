"""Writes out the options of functions."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from . import _options

Function = TypeVar("Function", bound=Callable[..., Any])


def written_out(function: Function) -> Function:
    """Gives a function that takes **options: Unpack[SomeOptions] a signature with each of
    them, which help, completion and inspect.signature show, and adds what they mean to its
    description."""
    signature = inspect.signature(function)
    *others, last = signature.parameters.values()
    name = str(last.annotation).removeprefix("Unpack[").removesuffix("]")
    options, defaults = getattr(_options, name), _options.DEFAULTS[name]
    types = typing.get_type_hints(options)
    have = [p.name for p in others]
    others += [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=v, annotation=types[n]) for n, v in defaults.items() if n not in have]
    function.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    function.__doc__ = inspect.cleandoc(function.__doc__ or "") + "\n\n" + inspect.cleandoc(options.__doc__)
    return function
