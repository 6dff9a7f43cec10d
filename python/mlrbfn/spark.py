"""mlrbfn in Spark: columns of images and features become verdicts.

    images = spark.read.format("binaryFile").load("photos")
    images = mlrbfn.spark.detect(images, "photos.safetensors")
    images.filter("verdict.ood").select("path", "verdict.class")

Each Python worker opens the detector and its model once and judges image after image, with
the threads that `spark.task.cpus` gives its task. Images are the bytes of files (`content` of
binary files, a column of a Parquet or Delta table) or paths and URLs that all workers can
read; an image that cannot be read is a row with an `error`. Detectors and models are named
by paths that all workers see, or by the name of a file that `addArtifact` or
`SparkContext.addFile` sent; a `Detector` itself is sent as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _engines, _native
from ._detector import Detector
from ._detector import train as _train
from ._features import Features

if TYPE_CHECKING:
    from pyspark.sql import DataFrame  # type: ignore[import-not-found,unused-ignore]
    from typing_extensions import Unpack

    from ._options import DetectOptions, EmbedOptions, TrainOptions

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def detect(df: DataFrame, detector: Detector | str | os.PathLike[str], image: str = "content", *, column: str = "verdict", **options: Unpack[DetectOptions]) -> DataFrame:
    """Adds a column of verdicts: `class`, `label`, `confidence`, `score`, `ood`, `p_value`, as
    of `mlrbfn detect`, and `error`. image is a column of the bytes of image files, or of their
    paths or URLs. options are those of `Detector.detect`, model= among them."""
    return _add(df, _engines.Work("detect", image, detector, dict(options), _sent), column)


def extract(df: DataFrame, model: str | os.PathLike[str] = "efficientnet-lite0", image: str = "content", *, column: str = "extracted", **options: Unpack[EmbedOptions]) -> DataFrame:
    """Adds a column of `features` (an array of float) and `error`, as of `mlrbfn extract`."""
    return _add(df, _engines.Work("extract", image, model, dict(options), _sent), column)


def judge(df: DataFrame, detector: Detector | str | os.PathLike[str], features: str = "embedding", *, column: str = "verdict") -> DataFrame:
    """Adds a column of verdicts on features that are there already; features may be within a
    struct, as in "extracted.features"."""
    return _add(df, _engines.Work("judge", features, detector, {}, _sent), column)


def train(
    df: DataFrame,
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] | Features = "efficientnet-lite0",
    *,
    features: str = "extracted.features",
    label: str = "label",
    path: str | None = None,
    progress: bool | None = None,
    **options: Unpack[TrainOptions],
) -> Detector:
    """Collects features into a feature set in the folder out of the driver, or on a disk that
    it sees, and trains a detector on it. model is that which made them, or features that it
    made. Rows come one
    partition after another, so they need not fit into memory; rows without features are left
    out."""
    F, types = _pyspark("sql.functions"), _pyspark("sql.types")
    rows = df.select(
        (F.col(path) if path else F.lit(None)).cast("string").alias("path"), F.col(label).cast("string").alias("label"), F.col(features).cast("array<float>").alias("features")
    )
    kinds = {"path": types.StringType(), "label": types.StringType(), "features": types.BinaryType()}
    schema = types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])
    packed = rows.filter("features is not null").mapInArrow(_packed, schema)
    collected = _engines.collect(((r["path"], r["label"], bytes(r["features"])) for r in packed.toLocalIterator()), out, model)
    return _train(collected, progress=progress, **options)


def _packed(batches: Iterator[Any]) -> Iterator[Any]:
    """Makes lists of features the bytes of arrays, which the driver reads a hundred times
    faster than numbers."""
    pa = _engines.arrow()
    for batch in batches:
        values = [x.values.to_numpy(zero_copy_only=False).astype("float32").tobytes() for x in batch.column("features")]
        yield pa.RecordBatch.from_arrays([batch.column("path"), batch.column("label"), pa.array(values, pa.binary())], ["path", "label", "features"])


def _add(df: DataFrame, work: _engines.Work, column: str) -> DataFrame:
    types, from_arrow_type = _pyspark("sql.types"), _pyspark("sql.pandas.types").from_arrow_type
    if column in df.columns:
        raise ValueError(f"there is a column {column} already: name another (column=)")
    if work.what != "judge":  # Spark would put 10,000 photographs into a batch
        conf = df.sparkSession.conf
        for name, most in ((_ROWS, _engines.MOST_IMAGES), (_BYTES, _engines.MOST_BYTES)):
            if not 0 < int((conf.get(name, None) or "0").rstrip("bB")) <= most:
                conf.set(name, most)
    kind = _engines.features_type() if work.what == "extract" else _engines.verdict_type()
    schema = types.StructType([*df.schema.fields, types.StructField(column, from_arrow_type(kind))])

    def added(batches: Iterator[Any]) -> Iterator[Any]:
        pa = _engines.arrow()
        for batch in batches:
            more = {} if work.what == "judge" else {"workers": _cores()}
            yield pa.RecordBatch.from_arrays([*batch.columns, work(batch, **more)], [*batch.schema.names, column])

    return df.mapInArrow(added, schema)


def _pyspark(name: str) -> Any:
    return _native.optional("pyspark." + name, "mlrbfn.spark")


def _cores() -> int:
    """Returns how many cores the task has."""
    context = _native.optional("pyspark", "mlrbfn.spark").TaskContext.get()
    return max(1, context.cpus()) if context else 1


def _sent(name: str) -> str:
    """Returns where a worker has a file or folder: at its path, or among the files that Spark
    sent."""
    if os.path.exists(name):
        return name
    SparkFiles = _native.optional("pyspark", "mlrbfn.spark").SparkFiles
    for file in (SparkFiles.get(os.path.basename(name)), os.path.join(SparkFiles.getRootDirectory(), name)):
        if os.path.exists(file):
            return file
    return name
