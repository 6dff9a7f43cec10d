"""The options of the package's functions, as the commands declare their flags. Written by
scripts/python_options.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Union

Path = Union[str, "os.PathLike[str]"]


class ExtractOptions(TypedDict, total=False):
    """Options of `mlrbfn extract`.

    list : path, default None
        only the images of a FILE with lines of path and label, as OpenOOD has them

    names : path, default None
        with list, class names as in another list: a FILE with the same labels

    exif : Literal["ignore", "apply"], default "ignore"
        EXIF orientation of JPEG, PNG and WebP

    scale_16_bit : bool, default False
        scale 16-bit grey to 8 bits; default: clip it at 255, as Pillow does, which makes most
        such images white

    shard : str, default None
        only the part i/n of the images, i from 1 to n

    output : str, default None
        NAME of the model's output (default: image_embeds, pooler_output, features, embedding,
        last_hidden_state, or the only one)

    pool : Literal["cls", "mean"], default None
        one vector of last_hidden_state (default: cls, or mean without class token)

    layers : str, default "none"
        also values within the model, for the default score: auto|NODE,…|none; auto finds the
        ends of a few blocks

    fast_math : bool, default False
        products in bfloat16, on arm64 processors that have it; features are others

    patches : str, default "none"
        also how strange the places of an image are: auto|NODE,…|FEATURES|none; a twentieth of
        the images says what is usual, or a set that has it

    size : int | str, default None
        resize to N|WxH (default: all images must have the same size)

    channels : Literal["grey", "rgb"], default None
        (default: grey for idx files, else rgb)

    mean : float | Sequence[float], default 0
        mean to subtract, X or one per channel as X,X,X

    std : float | Sequence[float], default 1
        standard deviation to divide by, X or one per channel

    verify : bool, default False
        find changed images by reading them, not by size and time

    force : bool, default False
        replace a set of another model, folder or shard, or a damaged one

    batch : int, default None
        images that a worker gives to the model at once (default: 1, or more if a short
        measurement finds that faster and bit-identical)

    workers : int, default None
        images in work at once (default: one per core or fewer)

    threads : int, default None
        threads of the model for each worker (default: 1, or more as above)

    device : str, default "cpu"
        DEVICE for the model: cpu|cuda|tensorrt|coreml|openvino|directml; the second of several
        is cuda:1

    provider : path, default None
        plug-in FILE of onnxruntime for the device (default: the library's own)

    open_timeout : str, default None
        give up on a model that takes longer than TIME to open (default: 2m, more for models
        above 200 MB)

    run_timeout : str, default None
        skip an image that the model takes longer than TIME for (default: 100 times what a blank
        one takes, at least 2m)

    allow_drifted_features : bool, default False
        use a model though its features differ from before so far that verdicts could change

    max_pixels : int, default None
        refuse images of more pixels (default: Pillow's limit, 178,956,970)

    image_timeout : str, default "2m0s"
        skip an image that takes longer than TIME to decode

    onnxruntime : path, default None
        onnxruntime library FILE (default: $ONNXRUNTIME_SHARED_LIBRARY_PATH, or one that is
        found)
    """

    list: Path | None
    names: Path | None
    exif: Literal["ignore", "apply"] | None
    scale_16_bit: bool | None
    shard: str | None
    output: str | None
    pool: Literal["cls", "mean"] | None
    layers: str | None
    fast_math: bool | None
    patches: str | None
    size: int | str | None
    channels: Literal["grey", "rgb"] | None
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    verify: bool | None
    force: bool | None
    batch: int | None
    workers: int | None
    threads: int | None
    device: str | None
    provider: Path | None
    open_timeout: str | None
    run_timeout: str | None
    allow_drifted_features: bool | None
    max_pixels: int | None
    image_timeout: str | None
    onnxruntime: Path | None


class EmbedOptions(TypedDict, total=False):
    """Options of `mlrbfn extract`.

    exif : Literal["ignore", "apply"], default "ignore"
        EXIF orientation of JPEG, PNG and WebP

    output : str, default None
        NAME of the model's output (default: image_embeds, pooler_output, features, embedding,
        last_hidden_state, or the only one)

    pool : Literal["cls", "mean"], default None
        one vector of last_hidden_state (default: cls, or mean without class token)

    size : int | str, default None
        resize to N|WxH (default: all images must have the same size)

    channels : Literal["grey", "rgb"], default None
        (default: grey for idx files, else rgb)

    mean : float | Sequence[float], default 0
        mean to subtract, X or one per channel as X,X,X

    std : float | Sequence[float], default 1
        standard deviation to divide by, X or one per channel

    batch : int, default None
        images that a worker gives to the model at once (default: 1, or more if a short
        measurement finds that faster and bit-identical)

    workers : int, default None
        images in work at once (default: one per core or fewer)

    threads : int, default None
        threads of the model for each worker (default: 1, or more as above)

    device : str, default "cpu"
        DEVICE for the model: cpu|cuda|tensorrt|coreml|openvino|directml; the second of several
        is cuda:1

    provider : path, default None
        plug-in FILE of onnxruntime for the device (default: the library's own)

    open_timeout : str, default None
        give up on a model that takes longer than TIME to open (default: 2m, more for models
        above 200 MB)

    run_timeout : str, default None
        skip an image that the model takes longer than TIME for (default: 100 times what a blank
        one takes, at least 2m)

    allow_drifted_features : bool, default False
        use a model though its features differ from before so far that verdicts could change

    max_pixels : int, default None
        refuse images of more pixels (default: Pillow's limit, 178,956,970)

    image_timeout : str, default "2m0s"
        skip an image that takes longer than TIME to decode

    onnxruntime : path, default None
        onnxruntime library FILE (default: $ONNXRUNTIME_SHARED_LIBRARY_PATH, or one that is
        found)
    """

    exif: Literal["ignore", "apply"] | None
    output: str | None
    pool: Literal["cls", "mean"] | None
    size: int | str | None
    channels: Literal["grey", "rgb"] | None
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    batch: int | None
    workers: int | None
    threads: int | None
    device: str | None
    provider: Path | None
    open_timeout: str | None
    run_timeout: str | None
    allow_drifted_features: bool | None
    max_pixels: int | None
    image_timeout: str | None
    onnxruntime: Path | None


class TrainOptions(TypedDict, total=False):
    """Options of `mlrbfn train`.

    outliers : path | Sequence[path], default None
        FEATURES of known out-of-distribution images to learn from (repeat)

    exclude : path, default None
        leave out the images in FILE: an issues.csv, or paths

    relabel : path, default None
        give images the class that FILE, an issues.csv, suggests

    calibration : float | str | os.pathLike[str], default 0.1
        SHARE of the training images, or feature set, to set the threshold by; cross:K: K folds;
        auto: cross:10 for few; 0: none

    max_false_alarms : float, default 0.05
        SHARE of in-distribution images that may be flagged

    scores : str, default "mlrbfn"
        SCORE to judge by: a method of evaluate, as head or ensemble(A,B,…)

    per_class : bool, default False
        a threshold for each class; needs about 20 calibration images per class

    no_assess : bool, default False
        leave out class hold-out: no assessment, and fixed weights of the score's parts

    paper : bool, default False
        the paper's head and settings; other flags still apply

    preset : Literal["imagenet1k", "mnist", "moons"], default None
        the paper's settings for a data set; other flags still apply

    network : Literal["residual", "paper"], default "residual"
        kind of head (paper: paper)

    val : float | str | os.pathLike[str], default 0.1
        SHARE of the training images, or feature set, to validate on; 0: none

    group_by : str, default None
        images whose paths match regular expression PATTERN alike stay together

    conditioning : str, default "auto"
        KIND of conditioning of the features: auto|none|l2|standardise|pca|whiten, or l2+ one of
        the last three (paper: none)

    shrinkage : float, default None
        shrinkage of whitening; 0: the one that fits the validation images

    pca_dims : int, default None
        principal axes that pca leaves; 0: all

    layers : int, default 2
        RBF layers (paper: 4)

    centroids : int, default 50
        centroids of each hidden layer

    projection : int, default None
        features that the layers read; 0: 50, or classes − 1 if that is more; for the paper's
        network the outputs of each hidden layer (paper: 100)

    norm : float, default 2
        k ≥ 1 of the distance ‖x−c‖ₖᵏ; only the paper's network has others than 2

    recovery : float, default 1.1
        how fast depression recovers from layer to layer, ≥ 1

    depression : Literal["paper", "none"], default "paper"
        depression mechanism

    epochs : int, default None
        passes over the training images (residual, unless given: at most 30,000 steps) (paper:
        500)

    batch : int, default 128
        images per training step; the first batch also initialises the paper's network

    lr : float, default 0.003
        learning rate of Adam (paper: 0.001)

    schedule : Literal["cosine", "plateau"], default "cosine"
        how the learning rate falls (paper: plateau)

    patience : int, default 50
        epochs without improvement before plateau halves the learning rate

    balance : Literal["none", "sample"], default "none"
        an epoch has each image once, or each class equally often

    seeds : int | Sequence[int], default 0
        train one head per seed (default 0)

    memory : int | str, default None
        memory for features, about (default: half of the machine's)
    """

    outliers: Path | Sequence[Path] | None
    exclude: Path | None
    relabel: Path | None
    calibration: float | str | os.PathLike[str] | None
    max_false_alarms: float | None
    scores: str | None
    per_class: bool | None
    no_assess: bool | None
    paper: bool | None
    preset: Literal["imagenet1k", "mnist", "moons"] | None
    network: Literal["residual", "paper"] | None
    val: float | str | os.PathLike[str] | None
    group_by: str | None
    conditioning: str | None
    shrinkage: float | None
    pca_dims: int | None
    layers: int | None
    centroids: int | None
    projection: int | None
    norm: float | None
    recovery: float | None
    depression: Literal["paper", "none"] | None
    epochs: int | None
    batch: int | None
    lr: float | None
    schedule: Literal["cosine", "plateau"] | None
    patience: int | None
    balance: Literal["none", "sample"] | None
    seeds: int | Sequence[int] | None
    memory: int | str | None


class DetectOptions(TypedDict, total=False):
    """Options of `mlrbfn detect`.

    batch : int, default None
        images that a worker gives to the model at once (default: 1, or more if a short
        measurement finds that faster and bit-identical)

    workers : int, default None
        images in work at once (default: one per core or fewer)

    threads : int, default None
        threads of the model for each worker (default: 1, or more as above)

    device : str, default "cpu"
        DEVICE for the model: cpu|cuda|tensorrt|coreml|openvino|directml; the second of several
        is cuda:1

    provider : path, default None
        plug-in FILE of onnxruntime for the device (default: the library's own)

    open_timeout : str, default None
        give up on a model that takes longer than TIME to open (default: 2m, more for models
        above 200 MB)

    run_timeout : str, default None
        skip an image that the model takes longer than TIME for (default: 100 times what a blank
        one takes, at least 2m)

    allow_drifted_features : bool, default False
        use a model though its features differ from before so far that verdicts could change

    max_pixels : int, default None
        refuse images of more pixels (default: Pillow's limit, 178,956,970)

    image_timeout : str, default "2m0s"
        skip an image that takes longer than TIME to decode

    onnxruntime : path, default None
        onnxruntime library FILE (default: $ONNXRUNTIME_SHARED_LIBRARY_PATH, or one that is
        found)
    """

    batch: int | None
    workers: int | None
    threads: int | None
    device: str | None
    provider: Path | None
    open_timeout: str | None
    run_timeout: str | None
    allow_drifted_features: bool | None
    max_pixels: int | None
    image_timeout: str | None
    onnxruntime: Path | None


class InspectOptions(TypedDict, total=False):
    """Options of `mlrbfn inspect`.

    images : path | Sequence[path], default None
        FOLDER that images may come from (repeat); default: those that the feature sets record

    no_images : bool, default False
        look at features alone, which is faster and finds fewer copies

    folds : int, default 5
        parts for predictions by heads that were fitted without the image

    seed : int, default 0
        N that the parts are drawn by

    memory : int | str, default None
        memory to use, about (default: half of the machine's)

    scratch : path, default None
        DIR for temporary files
    """

    images: Path | Sequence[Path] | None
    no_images: bool | None
    folds: int | None
    seed: int | None
    memory: int | str | None
    scratch: Path | None


class ShowOptions(TypedDict, total=False):
    """Options of `mlrbfn show`.

    features : path | Sequence[path], default None
        FEATURES that the detector was trained on, if they were moved (repeat)

    images : path | Sequence[path], default None
        FOLDER that images may come from (repeat); default: those that the feature sets record
    """

    features: Path | Sequence[Path] | None
    images: Path | Sequence[Path] | None


class ExplainOptions(TypedDict, total=False):
    """Options of `mlrbfn detect`.

    threshold : float, default None
        score below which an image is OOD (default: that of the detector)

    max_false_alarms : float, default None
        SHARE of in-distribution images that may be flagged (default: that of the detector)

    model : path, default None
        DIR of the detector's backbone (default: the one with its checksum, beside the detector,
        where it was at training, or in $MLRBFN_MODELS)

    maps : int, default 1000
        with explain where, how many flagged images get a map

    features : path | Sequence[path], default None
        FEATURES of the training images, for explain and report (default: those at training)

    nearest : int, default None
        training images to show for each image; 0: none

    batch : int, default None
        images that a worker gives to the model at once (default: 1, or more if a short
        measurement finds that faster and bit-identical)

    workers : int, default None
        images in work at once (default: one per core or fewer)

    threads : int, default None
        threads of the model for each worker (default: 1, or more as above)

    device : str, default "cpu"
        DEVICE for the model: cpu|cuda|tensorrt|coreml|openvino|directml; the second of several
        is cuda:1

    provider : path, default None
        plug-in FILE of onnxruntime for the device (default: the library's own)

    open_timeout : str, default None
        give up on a model that takes longer than TIME to open (default: 2m, more for models
        above 200 MB)

    run_timeout : str, default None
        skip an image that the model takes longer than TIME for (default: 100 times what a blank
        one takes, at least 2m)

    allow_drifted_features : bool, default False
        use a model though its features differ from before so far that verdicts could change

    max_pixels : int, default None
        refuse images of more pixels (default: Pillow's limit, 178,956,970)

    image_timeout : str, default "2m0s"
        skip an image that takes longer than TIME to decode

    onnxruntime : path, default None
        onnxruntime library FILE (default: $ONNXRUNTIME_SHARED_LIBRARY_PATH, or one that is
        found)
    """

    threshold: float | None
    max_false_alarms: float | None
    model: Path | None
    maps: int | None
    features: Path | Sequence[Path] | None
    nearest: int | None
    batch: int | None
    workers: int | None
    threads: int | None
    device: str | None
    provider: Path | None
    open_timeout: str | None
    run_timeout: str | None
    allow_drifted_features: bool | None
    max_pixels: int | None
    image_timeout: str | None
    onnxruntime: Path | None


class DiscoverOptions(TypedDict, total=False):
    """Options of `mlrbfn discover`.

    fdr : float, default 0.1
        SHARE of the images that are called new that may be known ones

    training : path | Sequence[path], default None
        FEATURES that the detector was trained and calibrated on (repeat; default: where they
        were)

    group_by : str, default None
        of images whose paths match regular expression PATTERN alike one counts, and says what
        all are

    seed : int, default 0
        N that parts are drawn by

    model : path, default None
        DIR of the detector's backbone (default: the one with its checksum, beside the detector,
        where it was at training, or in $MLRBFN_MODELS)

    memory : int | str, default None
        memory for the features of images, about (default: half of the machine's)

    scratch : path, default None
        DIR for temporary files

    batch : int, default None
        images that a worker gives to the model at once (default: 1, or more if a short
        measurement finds that faster and bit-identical)

    workers : int, default None
        images in work at once (default: one per core or fewer)

    threads : int, default None
        threads of the model for each worker (default: 1, or more as above)

    device : str, default "cpu"
        DEVICE for the model: cpu|cuda|tensorrt|coreml|openvino|directml; the second of several
        is cuda:1

    provider : path, default None
        plug-in FILE of onnxruntime for the device (default: the library's own)

    open_timeout : str, default None
        give up on a model that takes longer than TIME to open (default: 2m, more for models
        above 200 MB)

    run_timeout : str, default None
        skip an image that the model takes longer than TIME for (default: 100 times what a blank
        one takes, at least 2m)

    allow_drifted_features : bool, default False
        use a model though its features differ from before so far that verdicts could change

    max_pixels : int, default None
        refuse images of more pixels (default: Pillow's limit, 178,956,970)

    image_timeout : str, default "2m0s"
        skip an image that takes longer than TIME to decode

    onnxruntime : path, default None
        onnxruntime library FILE (default: $ONNXRUNTIME_SHARED_LIBRARY_PATH, or one that is
        found)
    """

    fdr: float | None
    training: Path | Sequence[Path] | None
    group_by: str | None
    seed: int | None
    model: Path | None
    memory: int | str | None
    scratch: Path | None
    batch: int | None
    workers: int | None
    threads: int | None
    device: str | None
    provider: Path | None
    open_timeout: str | None
    run_timeout: str | None
    allow_drifted_features: bool | None
    max_pixels: int | None
    image_timeout: str | None
    onnxruntime: Path | None


class DriftOptions(TypedDict, total=False):
    """Options of `mlrbfn drift`.

    by : Literal["time", "taken", "name"], default "time"
        order of the images: time of the last change, time that the camera wrote into the file
        (EXIF; else of the last change), or path (2.jpg before 10.jpg)

    training : path | Sequence[path], default None
        FEATURES that the detector was trained and calibrated on, for what is new since an alarm
        (repeat; default: where they were)

    alpha : float, default 0.01
        CHANCE of ever raising a false alarm

    model : path, default None
        DIR of the detector's backbone (default: the one with its checksum, beside the detector,
        where it was at training, or in $MLRBFN_MODELS)

    rows : int, default 20
        parts of the course that are shown

    batch : int, default None
        images that a worker gives to the model at once (default: 1, or more if a short
        measurement finds that faster and bit-identical)

    workers : int, default None
        images in work at once (default: one per core or fewer)

    threads : int, default None
        threads of the model for each worker (default: 1, or more as above)

    device : str, default "cpu"
        DEVICE for the model: cpu|cuda|tensorrt|coreml|openvino|directml; the second of several
        is cuda:1

    provider : path, default None
        plug-in FILE of onnxruntime for the device (default: the library's own)

    open_timeout : str, default None
        give up on a model that takes longer than TIME to open (default: 2m, more for models
        above 200 MB)

    run_timeout : str, default None
        skip an image that the model takes longer than TIME for (default: 100 times what a blank
        one takes, at least 2m)

    allow_drifted_features : bool, default False
        use a model though its features differ from before so far that verdicts could change

    max_pixels : int, default None
        refuse images of more pixels (default: Pillow's limit, 178,956,970)

    image_timeout : str, default "2m0s"
        skip an image that takes longer than TIME to decode

    onnxruntime : path, default None
        onnxruntime library FILE (default: $ONNXRUNTIME_SHARED_LIBRARY_PATH, or one that is
        found)
    """

    by: Literal["time", "taken", "name"] | None
    training: Path | Sequence[Path] | None
    alpha: float | None
    model: Path | None
    rows: int | None
    batch: int | None
    workers: int | None
    threads: int | None
    device: str | None
    provider: Path | None
    open_timeout: str | None
    run_timeout: str | None
    allow_drifted_features: bool | None
    max_pixels: int | None
    image_timeout: str | None
    onnxruntime: Path | None


class ExportOptions(TypedDict, total=False):
    """Options of `mlrbfn export`.

    max_false_alarms : float, default None
        another SHARE of in-distribution images that may be flagged (default: that of the
        detector)

    with_backbone : bool, default False
        put the backbone before the head, in one file

    model : path, default None
        DIR of the detector's backbone (default: the one with its checksum, beside the detector,
        where it was at training, or in $MLRBFN_MODELS)

    keep_outputs : bool, default False
        also output what the backbone itself outputs

    as_classifier : str, default None
        write the backbone and the detector as one classifier, whose last class is unknown, in a
        FORMAT: ultralytics, transformers or triton

    keep_logits : bool, default False
        with as_classifier: the other classes are those of the backbone's own classifier (its
        output logits)

    allow_drifted_features : bool, default False
        use a model though its features differ from before so far that verdicts could change

    onnxruntime : path, default None
        onnxruntime library FILE (default: $ONNXRUNTIME_SHARED_LIBRARY_PATH, or one that is
        found)

    opset : int, default None
        version of ONNX's operators (default: 17, or the backbone's)
    """

    max_false_alarms: float | None
    with_backbone: bool | None
    model: Path | None
    keep_outputs: bool | None
    as_classifier: str | None
    keep_logits: bool | None
    allow_drifted_features: bool | None
    onnxruntime: Path | None
    opset: int | None


class AddOptions(TypedDict, total=False):
    """Options of `mlrbfn train`.

    features : path | Sequence[path], default None
        feature set FEATURES to train on (repeat for several)

    model : path, default None
        DIR of the detector's backbone for add (default: it is found by its checksum)

    device : str, default "cpu"
        DEVICE for the model with add: cpu|cuda|tensorrt|coreml|openvino|directml

    workers : int, default None
        with add, images in work at once (default: one per core or fewer)

    memory : int | str, default None
        memory for features, about (default: half of the machine's)

    allow_drifted_features : bool, default False
        use a model though its features differ from before so far that verdicts could change

    onnxruntime : path, default None
        onnxruntime library FILE (default: $ONNXRUNTIME_SHARED_LIBRARY_PATH, or one that is
        found)

    force : bool, default False
        replace a detector of other classes
    """

    features: Path | Sequence[Path] | None
    model: Path | None
    device: str | None
    workers: int | None
    memory: int | str | None
    allow_drifted_features: bool | None
    onnxruntime: Path | None
    force: bool | None


DEFAULTS: dict[str, dict[str, Any]] = {
    "ExtractOptions": {
        "list": None,
        "names": None,
        "exif": "ignore",
        "scale_16_bit": False,
        "shard": None,
        "output": None,
        "pool": None,
        "layers": "none",
        "fast_math": False,
        "patches": "none",
        "size": None,
        "channels": None,
        "mean": 0,
        "std": 1,
        "verify": False,
        "force": False,
        "batch": None,
        "workers": None,
        "threads": None,
        "device": "cpu",
        "provider": None,
        "open_timeout": None,
        "run_timeout": None,
        "allow_drifted_features": False,
        "max_pixels": None,
        "image_timeout": "2m0s",
        "onnxruntime": None,
    },
    "EmbedOptions": {
        "exif": "ignore",
        "output": None,
        "pool": None,
        "size": None,
        "channels": None,
        "mean": 0,
        "std": 1,
        "batch": None,
        "workers": None,
        "threads": None,
        "device": "cpu",
        "provider": None,
        "open_timeout": None,
        "run_timeout": None,
        "allow_drifted_features": False,
        "max_pixels": None,
        "image_timeout": "2m0s",
        "onnxruntime": None,
    },
    "TrainOptions": {
        "outliers": None,
        "exclude": None,
        "relabel": None,
        "calibration": 0.1,
        "max_false_alarms": 0.05,
        "scores": "mlrbfn",
        "per_class": False,
        "no_assess": False,
        "paper": False,
        "preset": None,
        "network": "residual",
        "val": 0.1,
        "group_by": None,
        "conditioning": "auto",
        "shrinkage": None,
        "pca_dims": None,
        "layers": 2,
        "centroids": 50,
        "projection": None,
        "norm": 2,
        "recovery": 1.1,
        "depression": "paper",
        "epochs": None,
        "batch": 128,
        "lr": 0.003,
        "schedule": "cosine",
        "patience": 50,
        "balance": "none",
        "seeds": 0,
        "memory": None,
    },
    "DetectOptions": {
        "batch": None,
        "workers": None,
        "threads": None,
        "device": "cpu",
        "provider": None,
        "open_timeout": None,
        "run_timeout": None,
        "allow_drifted_features": False,
        "max_pixels": None,
        "image_timeout": "2m0s",
        "onnxruntime": None,
    },
    "InspectOptions": {
        "images": None,
        "no_images": False,
        "folds": 5,
        "seed": 0,
        "memory": None,
        "scratch": None,
    },
    "ShowOptions": {
        "features": None,
        "images": None,
    },
    "ExplainOptions": {
        "threshold": None,
        "max_false_alarms": None,
        "model": None,
        "maps": 1000,
        "features": None,
        "nearest": None,
        "batch": None,
        "workers": None,
        "threads": None,
        "device": "cpu",
        "provider": None,
        "open_timeout": None,
        "run_timeout": None,
        "allow_drifted_features": False,
        "max_pixels": None,
        "image_timeout": "2m0s",
        "onnxruntime": None,
    },
    "DiscoverOptions": {
        "fdr": 0.1,
        "training": None,
        "group_by": None,
        "seed": 0,
        "model": None,
        "memory": None,
        "scratch": None,
        "batch": None,
        "workers": None,
        "threads": None,
        "device": "cpu",
        "provider": None,
        "open_timeout": None,
        "run_timeout": None,
        "allow_drifted_features": False,
        "max_pixels": None,
        "image_timeout": "2m0s",
        "onnxruntime": None,
    },
    "DriftOptions": {
        "by": "time",
        "training": None,
        "alpha": 0.01,
        "model": None,
        "rows": 20,
        "batch": None,
        "workers": None,
        "threads": None,
        "device": "cpu",
        "provider": None,
        "open_timeout": None,
        "run_timeout": None,
        "allow_drifted_features": False,
        "max_pixels": None,
        "image_timeout": "2m0s",
        "onnxruntime": None,
    },
    "ExportOptions": {
        "max_false_alarms": None,
        "with_backbone": False,
        "model": None,
        "keep_outputs": False,
        "as_classifier": None,
        "keep_logits": False,
        "allow_drifted_features": False,
        "onnxruntime": None,
        "opset": None,
    },
    "AddOptions": {
        "features": None,
        "model": None,
        "device": "cpu",
        "workers": None,
        "memory": None,
        "allow_drifted_features": False,
        "onnxruntime": None,
        "force": False,
    },
}
