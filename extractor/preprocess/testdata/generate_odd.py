"""Writes what Pillow makes of the odd images of the shared folder.

    python3 extractor/preprocess/testdata/generate_odd.py SHARED/data/odd extractor/preprocess/testdata/odd.csv

Needs Pillow 13. Each line is a file of MANIFEST.csv:

    path    relative to the folder
    format  as Pillow calls it; empty where it knows none
    width, height, sha256  of convert("RGB"), the first 16 digits of the hash;
            empty where Pillow raises an error
"""
import csv
import hashlib
import os
import sys
import warnings

from PIL import Image

warnings.simplefilter("ignore")
root, out = sys.argv[1:]


def describe(path):
    row = {"path": path}
    try:
        image = Image.open(os.path.join(root, path))
        row["format"] = image.format
        image.load()
        rgb = image.convert("RGB")
    except Exception:  # Pillow raises a dozen kinds
        return row
    row["width"], row["height"] = rgb.size
    row["sha256"] = hashlib.sha256(rgb.tobytes()).hexdigest()[:16]
    return row


with open(os.path.join(root, "MANIFEST.csv"), newline="") as f:
    paths = sorted(row["path"] for row in csv.DictReader(f))
with open(out, "w", newline="") as f:
    writer = csv.DictWriter(f, ["path", "format", "width", "height", "sha256"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(describe, paths))
