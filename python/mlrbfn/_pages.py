"""What notebooks show."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Iterable, Sequence
from typing import Any

MOST = 20  # rows and pictures


def frame(page: str) -> str:
    """Shows a page with its own styles."""
    return f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: 40em; border: 1px solid #ccc"></iframe>'


def picture(path: str | None) -> str:
    """Returns a small picture of an image file, "" if there is none or Pillow is missing."""
    try:
        from PIL import Image

        with Image.open(path or "") as image:
            image.draft("RGB", (96, 96))
            small = image.convert("RGB")
        small.thumbnail((96, 96))
    except (ImportError, OSError, ValueError, SyntaxError):
        return ""
    data = io.BytesIO()
    small.save(data, "JPEG")
    return f'<img src="data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}" style="height: 48px">'


def cell(value: Any) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return html.escape(text)


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of cells in HTML."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    return f"<table><tr>{head}</tr>{''.join('<tr>' + ''.join(f'<td>{c}</td>' for c in row) + '</tr>' for row in rows)}</table>"


def rest(n: int, what: str) -> str:
    return f"<p>and {n - MOST} more {what}</p>" if n > MOST else ""


def of_verdicts(verdicts: Any) -> str:
    """Shows verdicts, with pictures of those that are of files."""
    names = list(verdicts.dtype.names or ())
    rows = []
    for v in verdicts[:MOST]:
        cells = [cell(value.item() if hasattr(value, "item") else value) for value in v]
        rows.append([f"<b>{c}</b>" if "ood" in names and v["ood"] else c for c in cells])
        if "path" in names:
            rows[-1].insert(0, picture(v["path"]))
    return table(["", *names] if "path" in names else names, rows) + rest(len(verdicts), "verdicts")


def of_detector(detector: Any) -> str:
    """Shows what is known of a detector, and each class, the hardest first."""
    text = f"<p>{html.escape(repr(detector))}</p>"
    if alarms := detector.info["false_alarms"]:
        text += f"<p>in the long run it flags {100 * alarms[0]:.2g}% to {100 * alarms[1]:.2g}% of the images of known classes</p>"
    if not (assessed := detector.assessment):
        return text + "<p>" + ", ".join(cell(c) for c in detector.classes_[:MOST]) + "</p>" + rest(len(detector.classes_), "classes")
    known = 0.05 in assessed.get("false_alarms", [0.05])  # else too few images calibrate
    caught = f"; at 5% false alarms {assessed['caught_at_5_percent']:.0%} are caught" if known else ""
    text += f"<p>a new class like these would be noticed with AUROC {assessed['auroc']:.3f}{caught}</p>"
    hardest = sorted(assessed["classes"].items(), key=lambda item: item[1]["auroc"])
    rows = [[cell(name), cell(a["auroc"]), cell(a["caught_at_5_percent"] if known else "–"), cell(a["taken_for"])] for name, a in hardest[:MOST]]
    return text + table(["if this class were new", "AUROC", "caught at 5%", "taken for"], rows) + rest(len(hardest), "classes")


def of_features(features: Any) -> str:
    """Shows what is in a feature set: the images of each class, and some of them."""
    text = f"<p>{html.escape(repr(features))}</p>"
    paths = features.paths
    shown = []
    for label, name in enumerate(features.classes[:MOST]):
        rows = (features.labels == label).nonzero()[0]
        pictures = "".join(picture(os.path.join(features.root, paths[row])) for row in rows[:6]) if paths else ""
        shown.append([cell(name), str(len(rows)), pictures])
    return text + table(["class", "images", ""], shown) + rest(len(features.classes), "classes")
