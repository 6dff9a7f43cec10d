"""Writes python/mlrbfn/_options.py: the options of the package's functions, with their
types, defaults and descriptions, as the flags of the commands are declared.

    python3 scripts/python_options.py [--check]

The shared library must be built (`make python`).
"""

from __future__ import annotations

import argparse
import keyword
import os
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "python" / "mlrbfn" / "_options.py"

# The package itself cannot be imported before the file is there.
package = ModuleType("mlrbfn")
package.__path__ = [str(FILE.parent)]
package._environment = lambda: dict(os.environ)  # type: ignore[attr-defined]
sys.modules["mlrbfn"] = package

from mlrbfn import _native  # noqa: E402

# What tells how a model runs.
RUN = "batch workers threads device provider open_timeout run_timeout allow_drifted_features max_pixels image_timeout onnxruntime"

# Which options functions have: all that libraries offer, or those that are named.
CLASSES = {
    "ExtractOptions": ("extract", None),
    "EmbedOptions": ("extract", f"exif output pool size channels mean std {RUN}"),
    "TrainOptions": ("train", None),
    "DetectOptions": ("detect", None),
    "InspectOptions": ("inspect", "images no_images folds seed memory scratch"),
    "ShowOptions": ("show", "features images"),
    "ExplainOptions": ("detect", f"threshold max_false_alarms model maps features nearest {RUN}"),
    "DiscoverOptions": ("discover", f"fdr training group_by seed model memory scratch {RUN}"),
    "DriftOptions": ("drift", f"by training alpha model rows {RUN}"),
    "ExportOptions": ("export", "max_false_alarms with_backbone model keep_outputs as_classifier keep_logits allow_drifted_features onnxruntime opset"),
    "AddOptions": ("train", "features model device workers memory allow_drifted_features onnxruntime force"),
}

TYPES = {
    "float64": "float", "int": "int", "int64": "int", "uint64": "int", "bool": "bool", "string": "str", "duration": "str", "share": "float | str | os.PathLike[str]",
    "seeds": "int | Sequence[int]", "float64Slice": "float | Sequence[float]", "BYTES": "int | str", "stringArray": "Path | Sequence[Path]",
}  # fmt: skip
FILES = {"FILE", "DIR", "FEATURES", "FOLDER", "DETECTOR"}

HEAD = '''"""The options of the package's functions, as the commands declare their flags. Written by
scripts/python_options.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Union

Path = Union[str, "os.PathLike[str]"]

'''


def kind(option: dict[str, Any]) -> str:
    """Returns the type of an option."""
    if option["words"]:
        return f"Literal[{', '.join(repr_(word) for word in option['words'])}]"
    if option["type"] == "string" and option["value"] in FILES:
        return "Path"
    if option["value"] == "N|WxH":
        return "int | str"
    return TYPES[option["type"]]


def default(option: dict[str, Any]) -> str:
    """Returns the value of an option that is not given: None where the program chooses it."""
    text = option["default"]
    if option["type"] == "bool":
        return str(text == "true")
    if text in ("", "[]", "0s", "0B") or option["type"] in ("int", "int64", "float64") and re.search(r"\(default|0:|unless given", option["about"]):
        return "None"
    if re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", text):
        return text
    return repr_(text)


def repr_(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def written() -> str:
    """Returns the module."""
    out, defaults = [HEAD], ["\nDEFAULTS: dict[str, dict[str, Any]] = {\n"]
    for name, (command, chosen) in CLASSES.items():
        options = {o["name"]: o for o in _native.call("options", {"command": command}, quick=True)}
        if chosen is None:
            options = {n: o for n, o in options.items() if not o["program"]}
        else:
            options = {n: options[n] for n in chosen.split()}
        options = {n: o for n, o in options.items() if not keyword.iskeyword(n)}  # such as class, which **{"class": …} gives
        out.append(f'\nclass {name}(TypedDict, total=False):\n    """Options of `mlrbfn {command}`.\n')
        for o in options.values():
            about = o["about"].replace("\\", "\\\\")
            out.append(f"\n    {o['name']} : {kind(o).replace('Path', 'path')}, default {default(o)}\n" + textwrap.fill(about, 96, initial_indent=" " * 8, subsequent_indent=" " * 8) + "\n")
        out.append('    """\n\n')
        defaults.append(f"    {repr_(name)}: {{\n")
        for o in options.values():
            out.append(f"    {o['name']}: {kind(o)} | None\n")
            defaults.append(f"        {repr_(o['name'])}: {default(o)},\n")
        out.append("\n")
        defaults.append("    },\n")
    return "".join([*out, *defaults, "}\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    args = parser.parse_args()
    text = written()
    if not args.check:
        FILE.write_text(text, "utf-8")
    elif not FILE.exists() or FILE.read_text("utf-8") != text:
        sys.exit(f"{FILE} is not what the flags say: run scripts/python_options.py")


if __name__ == "__main__":
    main()
