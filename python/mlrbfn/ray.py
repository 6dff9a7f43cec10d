"""mlrbfn in Ray: classes for `Dataset.map_batches`.

    photos = ray.data.read_binary_files("photos", include_paths=True)
    photos = photos.map_batches(
        mlrbfn.ray.Detect, fn_constructor_args=["photos.safetensors"], batch_format="pyarrow", compute=ray.data.ActorPoolStrategy(size=4)
    )
    photos.filter(expr="verdict.ood")

The classes are plain functions of Arrow tables, for `datasets` and others too. Each actor
opens the detector and its model once. Images are the bytes of files, or paths and
URLs that all actors can read; their pixels never enter Ray's object store. An image that
cannot be read is a row with an `error`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from . import _engines
from ._detector import Detector

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import DetectOptions, EmbedOptions


class _Batches:
    """Adds a column to batches: Arrow tables, or dictionaries of NumPy arrays, which it
    returns as Arrow tables."""

    def __init__(self, work: _engines.Work, column: str) -> None:
        self._work, self._column = work, column

    def __call__(self, batch: Any) -> Any:
        pa = _engines.arrow()
        if not isinstance(batch, pa.Table):
            batch = pa.table({name: _arrow(pa, values) for name, values in batch.items()})
        more = {} if self._work.what == "judge" else _cores()
        return batch.append_column(self._column, self._work(batch, **more))


class Detect(_Batches):
    """Adds a column of verdicts; see `mlrbfn.spark.detect`."""

    def __init__(self, detector: Detector | str | os.PathLike[str], image: str = "bytes", *, column: str = "verdict", **options: Unpack[DetectOptions]) -> None:
        super().__init__(_engines.Work("detect", image, detector, dict(options)), column)


class Extract(_Batches):
    """Adds a column of features; see `mlrbfn.spark.extract`."""

    def __init__(self, model: str | os.PathLike[str] = "efficientnet-lite0", image: str = "bytes", *, column: str = "extracted", **options: Unpack[EmbedOptions]) -> None:
        super().__init__(_engines.Work("extract", image, model, dict(options)), column)


class Judge(_Batches):
    """Adds a column of verdicts on features that are there already."""

    def __init__(self, detector: Detector | str | os.PathLike[str], features: str = "embedding", *, column: str = "verdict") -> None:
        super().__init__(_engines.Work("judge", features, detector, {}), column)


def _arrow(pa: Any, values: Any) -> Any:
    """Returns a column as Arrow has it, without a copy of numbers."""
    if getattr(values, "ndim", 1) == 2:
        flat = pa.array(values.reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.array(values)


def _cores() -> dict[str, int]:
    """Returns how many images may be in work at once: as many as the actor has cores."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {}  # all cores
    return {"workers": max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))}
