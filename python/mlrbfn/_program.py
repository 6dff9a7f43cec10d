"""What the program's commands say of features and detectors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _arrays, _images, _native, _pages
from ._features import Features
from ._signatures import written_out

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from ._detector import Detector, Discovered
    from ._options import AddOptions, DiscoverOptions, DriftOptions, ExplainOptions, ExportOptions, InspectOptions, ShowOptions

StrPath = str | os.PathLike[str]


def run(command: str, options: Mapping[str, Any], paths: Sequence[StrPath] = (), progress: bool | None = False) -> str:
    """Runs a command with options in the place of its flags, and returns what it prints. Its
    notes are warnings."""
    arguments = {"command": command, "settings": _native.settings(dict(options)), "paths": [_native.encode(p) for p in paths]}
    text: str = _native.call("run", arguments, progress=progress)
    return text


class Report(dict[str, Any]):
    """What a command found, by the names of its JSON. ``page`` is the file of its page, which
    a notebook shows; it is None where there is none."""

    page: Path | None = None
    _room: _native.Room | None = None  # of the page, as long as anybody has the report

    def _repr_html_(self) -> str | None:
        return _pages.frame(self.page.read_text("utf-8")) if self.page and self.page.exists() else None

    @classmethod
    def _room_for(cls, page: StrPath | None, name: str) -> Report:
        """Returns a report whose page is to be written: to a temporary folder if nobody says
        where."""
        report = cls()
        if page is None:
            report._room = _native.Room()
        report.page = Path(page) if page is not None else Path(report._room.name, name)  # type: ignore[union-attr]
        return report


class Inspection(Report):
    """What `inspect` found: counts by the names of its JSON, ``issues``, and a page, which a
    notebook shows."""

    @property
    def file(self) -> Path:
        """The file issues.csv, for train(…, exclude=file) or relabel=file."""
        return Path(self["out"], "issues.csv")

    @cached_property
    def issues(self) -> pandas.DataFrame:
        """What is wrong, a row for each image: kind, path, label, suggested label, score."""
        frame: pandas.DataFrame = _native.optional("pandas", "issues").read_csv(self.file, keep_default_na=False)
        return frame


@written_out
def inspect(features: Features | Sequence[Features], *, test: Features | Sequence[Features] = (), out: StrPath | None = None, progress: bool | None = None, **options: Unpack[InspectOptions]) -> Inspection:
    """Finds labels that seem wrong, copies, images that the test set has as well, outliers and
    odd files, as `mlrbfn inspect`.

    features and test are feature sets. out is a folder for the page and the file of issues,
    which else last as long as the result.
    """
    report = Inspection._room_for(None if out is None else Path(out, "report.html"), "report.html")
    assert isinstance(report, Inspection) and report.page
    sets = {"features": _folders(features), "test": _folders(test)}
    report.update(json.loads(run("inspect", {**options, **sets, "out": report.page.parent, "json": True}, progress=progress)))
    return report


def _folders(features: Any) -> list[str]:
    return [f.folder for f in ([features] if isinstance(features, Features) else features)]


class Commands:
    """The commands that are about a detector."""

    @written_out
    def show(self, *, page: StrPath | None = None, progress: bool | None = None, **options: Unpack[ShowOptions]) -> Report:
        """Says how good the detector is, as `mlrbfn show`: its classes, how often it is right,
        how well a new class would be noticed, and the command that repeats the training. Its
        page has curves and, where the feature sets are at hand, a map and pictures."""
        report = Report._room_for(page, "show.html")
        with _file_of(self) as (_, file):
            report.update(json.loads(run("show", {**options, "json": True, "out": report.page}, [file], progress)))
        return report

    @written_out
    def explain(self, images: Any, *, where: bool = False, progress: bool | None = None, **options: Unpack[ExplainOptions]) -> list[dict[str, Any]]:
        """Says why images have their verdicts, as `mlrbfn detect --explain`: for each image a
        sentence, the parts of the score and the nearest training images, and with where also
        which region of a flagged image made the score fall. images are what `detect` takes."""
        return self._explained(images, {"explain": "where" if where else "why", **options}, progress)

    @written_out
    def report(self, images: Any, *, where: bool = False, page: StrPath | None = None, progress: bool | None = None, **options: Unpack[ExplainOptions]) -> Report:
        """Makes a page of images, the most surprising first, with what `explain` says of them;
        the result has this as "images"."""
        report = Report._room_for(page, "report.html")
        report["images"] = self._explained(images, {"explain": "where" if where else "why", "report": report.page, **options}, progress)
        return report

    def _explained(self, images: Any, options: dict[str, Any], progress: bool | None) -> list[dict[str, Any]]:
        with _file_of(self) as (room, file):
            paths = _images.files(images, room)
            lines = run("detect", {**options, "detector": file, "format": "jsonl"}, paths, progress).splitlines()
        return _said(lines, room)

    @written_out
    def drift(self, paths: StrPath | Sequence[StrPath], *, page: StrPath | None = None, progress: bool | None = None, **options: Unpack[DriftOptions]) -> Report:
        """Goes through files and folders of images in order and says whether they ceased to be
        like the training images, as `mlrbfn drift`."""
        report = Report._room_for(page, "drift.html")
        with _file_of(self) as (_, file):
            several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
            report.update(json.loads(run("drift", {**options, "detector": file, "json": True, "report": report.page}, several, progress)))
        return report

    @written_out
    def discover(self, images: Any, *, progress: bool | None = None, **options: Unpack[DiscoverOptions]) -> Discovered:
        """Judges images together and says which are new, so that at most the share fdr of these
        is of known classes, as `mlrbfn discover`. images are what `detect` takes, `Features`, or
        rows of features [n, d]. The features that the detector was trained and calibrated on
        must be on the disk, where they were or in training."""
        from ._detector import discovered

        with _file_of(self) as (room, file):
            given: dict[str, Any] = {**options, "detector": file, "format": "jsonl", "out": os.path.join(room, "found")}
            paths: list[str] = []
            if isinstance(images, Features):
                given["features"] = images.folder
            elif isinstance(images, np.ndarray) and images.ndim == 2 and images.dtype.kind == "f":
                given["features"] = os.path.join(room, "rows")
                os.mkdir(given["features"])
                np.save(os.path.join(given["features"], "features.npy"), _arrays.rows(images, self.n_features_in_))  # type: ignore[attr-defined]
            else:
                paths = _images.files(images, room)
            lines = _said(run("discover", given, paths, progress).splitlines(), room)
            summary = json.loads(Path(room, "found", "summary.json").read_text("utf-8"))
        return discovered(self, lines, summary)  # type: ignore[arg-type]

    @written_out
    def export(self, out: StrPath, **options: Unpack[ExportOptions]) -> Path:
        """Writes the detector as an ONNX file for programs in other languages, and returns its
        path; with_backbone=True puts the model before it."""
        with _file_of(self) as (_, file):
            run("export", {**options, "detector": file, "out": out})
        return Path(out)

    @written_out
    def add(self, images: Mapping[str, StrPath], *, out: StrPath, progress: bool | None = None, **options: Unpack[AddOptions]) -> Detector:
        """Adds images of classes, known or new, and returns the detector that knows them, as
        `mlrbfn train --add`. images are folders by the names of classes. The new detector is
        written to the file out, and the features of the new images beside it. The features
        that this detector was trained on must still be there."""
        from ._detector import Detector

        with _file_of(self) as (_, file):
            given = [f"{name}={os.fspath(folder)}" for name, folder in images.items()]
            added = run("train", {**options, "add": given, "detector": file, "out": out, "json": True}, progress=progress)
        detector = Detector.load(out)
        detector.result = json.loads(added)
        return detector


def _said(lines: Sequence[str], room: str) -> list[dict[str, Any]]:
    """Returns what a command printed of images: the path of one that was in memory is None."""
    said: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for one in said:
        if one["path"].startswith(Path(room).as_posix() + "/"):
            one["path"] = None
    return said


class _file_of:
    """A folder for the time of a command, and the detector in a file: the one that it was
    loaded from if that is as it was, or else one in the folder."""

    def __init__(self, detector: Any) -> None:
        self.detector = detector

    def __enter__(self) -> tuple[str, str]:
        self.room = _native.Room()
        file, stat = self.detector._loaded or ("", None)
        if not file or _stat(file) != stat:
            file = os.path.join(self.room.name, "detector.safetensors")
            self.detector.save(file)
        return self.room.name, file

    def __exit__(self, *_: object) -> None:
        self.room.close()


def _stat(file: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(file)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns
