"""mlrbfn: is an image of any class that a detector knows?

    features = mlrbfn.extract("photos/train", out="photos.features")
    detector = mlrbfn.train(features)
    detector.save("photos.safetensors")
    verdicts = detector.detect("photos/new")
    verdicts.to_pandas()

`mlrbfn.sklearn` has an estimator for scikit-learn, `mlrbfn.pyod` one for PyOD;
`mlrbfn.spark` and `mlrbfn.ray` judge tables of images. The package also brings the program
`mlrbfn`, its default backbone (models/) and the pictures of `mlrbfn demo` (demo/). `python -m mlrbfn` runs the program.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

try:
    __version__ = version("mlrbfn")
except PackageNotFoundError:  # a checkout
    __version__ = "unknown"

from ._detector import Detector, Discovered, Verdicts, train
from ._errors import (
    AccessError,
    DataWarning,
    DetectorError,
    DivergedError,
    Error,
    FeaturesError,
    ForkError,
    ModelError,
    NotFoundError,
    OnnxruntimeError,
    OptionError,
)
from ._features import Features, embed, extract, load_features
from ._program import Inspection, Report, inspect
from ._quantise import Quantised, quantise

__all__ = [
    "AccessError",
    "DataWarning",
    "Detector",
    "DetectorError",
    "Discovered",
    "DivergedError",
    "Error",
    "Features",
    "FeaturesError",
    "ForkError",
    "Inspection",
    "ModelError",
    "NotFoundError",
    "OnnxruntimeError",
    "OptionError",
    "Quantised",
    "Report",
    "Verdicts",
    "__version__",
    "embed",
    "extract",
    "inspect",
    "load_features",
    "models",
    "program",
    "quantise",
    "train",
]


def models() -> Path:
    """Returns the folder of the models that come with the package."""
    return Path(__file__).parent / "models"


def program() -> Path:
    """Returns the path of the program, where pip put it."""
    name = "mlrbfn.exe" if os.name == "nt" else "mlrbfn"
    user = sysconfig.get_preferred_scheme("user")
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", user), Path(__file__).parent.parent / "bin"]
    for folder in folders:
        file = Path(folder) / name
        if file.is_file():
            return file
    raise FileNotFoundError(f"{name} is in none of {', '.join(map(str, folders))}; install mlrbfn again")


def _environment() -> dict[str, str]:
    """Returns the environment of the program: with onnxruntime's library and the
    models, wherever this Python has them, unless the user names others."""
    env = dict(os.environ)
    env["MLRBFN_MODELS"] = os.pathsep.join(filter(None, [env.get("MLRBFN_MODELS"), str(models())]))
    if "ONNXRUNTIME_SHARED_LIBRARY_PATH" not in env:
        for folder in sys.path:
            capi = Path(folder or ".") / "onnxruntime" / "capi"
            for pattern in ("onnxruntime.dll", "libonnxruntime.so*", "libonnxruntime*.dylib"):
                for file in sorted(capi.glob(pattern)):
                    env.setdefault("ONNXRUNTIME_SHARED_LIBRARY_PATH", str(file))
    return env


def main() -> int:
    """Runs the program with the arguments of this process."""
    command = [str(program()), *sys.argv[1:]]
    if os.name != "nt":
        os.execve(command[0], command, _environment())
    import subprocess

    return subprocess.run(command, env=_environment(), check=False).returncode
