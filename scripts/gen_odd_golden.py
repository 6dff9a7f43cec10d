"""Writes what Pillow makes of the odd images of the shared folder.

    python3 scripts/gen_odd_golden.py SHARED/data/odd extractor/preprocess/testdata/odd.csv

Needs Pillow 13. Each line is a file of MANIFEST.csv:

    path    relative to the folder
    format  as Pillow calls it; empty where it knows none
    width, height, sha256  of convert("RGB"), the first 16 digits of the hash;
            empty where Pillow raises an error
    levels  where JPEG was decoded, which no two decoders do to the bit: the
            RGB of 64 pixels, in base64; the i-th (from 1) is pixel number
            (i * 2654435761 mod 2^32) * width * height >> 32, row by row
"""
import base64
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
        jpeg = image.format == "JPEG" or image.info.get("compression") == "jpeg"
        image.load()
        rgb = image.convert("RGB")
    except Exception:  # Pillow raises a dozen kinds
        return row
    pixels = rgb.tobytes()
    row["width"], row["height"] = rgb.size
    row["sha256"] = hashlib.sha256(pixels).hexdigest()[:16]
    if jpeg:
        n = rgb.width * rgb.height
        at = [(i * 2654435761 % 2**32 * n >> 32) * 3 for i in range(1, 65)]
        row["levels"] = base64.b64encode(b"".join(pixels[a:a + 3] for a in at)).decode()
    return row


with open(os.path.join(root, "MANIFEST.csv"), newline="") as f:
    paths = sorted(row["path"] for row in csv.DictReader(f))
with open(out, "w", newline="") as f:
    writer = csv.DictWriter(f, ["path", "format", "width", "height", "sha256", "levels"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(describe, paths))
