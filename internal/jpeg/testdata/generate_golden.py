#!/usr/bin/env python3
"""Writes JPEG files of every kind, and what Pillow makes of them.

    internal/jpeg/testdata/generate_golden.py internal/jpeg/testdata/golden.zip ../shared/data

needs Pillow 13 with libjpeg-turbo 3, numpy, and what makes files that Pillow does not: cjpeg
(Debian: libjpeg-turbo-progs) any sampling, arithmetic coding, restarts, incomplete progressions,
imagecodecs lossless ones and YCCK.
golden.json in the archive has, for each file, the size and the SHA-256 of the bytes of convert("RGB"), or
null where Pillow raises an error. Files that begin with "broken-" are others, damaged. shared.json
has the same for JPEGs of the folder of outside witnesses, which stay there.
"""
import hashlib
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import zipfile

import imagecodecs
import numpy as np
from PIL import Image, ImageFilter, features

assert features.version_feature("libjpeg_turbo").startswith("3."), "want Pillow with libjpeg-turbo 3"
folder = tempfile.TemporaryDirectory()
OUT = pathlib.Path(folder.name)
rng = random.Random(1)


def picture(width, height):
    """Edges, slopes and noise, so that coefficients of all sizes occur."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([127 + 100 * np.sin(x / 5 + y / 9), 255 * ((x // 7 + y // 5) % 2), 3 * x + 2 * y], -1)
    noise = np.random.default_rng(width * 100 + height).normal(0, 12, (height, width, 3))
    return Image.fromarray((waves + noise).clip(0, 255).astype(np.uint8))


def cjpeg(name, image, *options):
    ppm = io.BytesIO()
    image.save(ppm, "PPM")
    data = subprocess.run(["cjpeg", *options], input=ppm.getvalue(), capture_output=True, check=True).stdout
    (OUT / f"{name}.jpg").write_bytes(data)


SCANS = {  # progressions that leave coefficients out, and sequential scans one by one
    "dc": ("-progressive", "0,1,2: 0-0, 0, 0;"),
    "dc-coarse": ("-progressive", "0,1,2: 0-0, 0, 1;"),
    "some-ac": ("-progressive", "0,1,2: 0-0, 0, 1; 0: 1-5, 0, 2;"),
    "no-luma-ac": ("-progressive", "0,1,2: 0-0, 0, 0; 1: 1-63, 0, 0; 2: 1-9, 0, 1;"),
    "separate": (None, "0; 1; 2;"),
    "pairs": (None, "2; 0 1;"),
}
SAMPLINGS = ["1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "4x2", "2x4", "3x1", "3x2", "2x2,2x1,1x2", "1x1,2x2,2x2"]
KINDS = {
    "sequential": [],
    "progressive": ["-progressive"],
    "arithmetic": ["-arithmetic"],
    "progressive-arithmetic": ["-progressive", "-arithmetic"],
    "restart": ["-restart", "1"],
    "restart-blocks": ["-restart", "3B"],
    "progressive-restart": ["-progressive", "-restart", "2B"],
    "progressive-arithmetic-restart": ["-progressive", "-arithmetic", "-restart", "2B"],
}
for sampling in SAMPLINGS:
    for kind, options in KINDS.items():
        width, height = rng.choice([(1, 1), (3, 5), (8, 8), (17, 33), (37, 29), (40, 19)])
        quality = rng.choice(["30", "75", "95", "100"])
        name = f"{kind}-{sampling.replace(',', '_')}-{width}x{height}"
        cjpeg(name, picture(width, height), "-quality", quality, "-sample", sampling, *options)
for name, (progressive, scans) in SCANS.items():
    script = OUT / "scans"
    script.write_text(scans)
    for sampling in ["1x1", "2x2", "1x2"]:
        cjpeg(f"scans-{name}-{sampling}", picture(50, 41), "-quality", "60", "-sample", sampling,
              *([progressive] if progressive else []), "-scans", str(script))
    script.unlink()
for kind, options in KINDS.items():
    cjpeg(f"grey-{kind}", picture(21, 18), "-grayscale", *options)
    cjpeg(f"rgb-{kind}", picture(21, 18), "-rgb", *options)
for i in range(3):
    for progressive in (False, True):
        picture(33, 22).convert("CMYK").save(OUT / f"cmyk-{i}-{progressive}.jpg", subsampling=i, progressive=progressive)
for predictor in range(1, 8):
    for name, image in ("rgb", np.asarray(picture(25, 17))), ("grey", np.asarray(picture(19, 14).convert("L"))):
        data = imagecodecs.jpeg8_encode(image, lossless=True, predictor=predictor)
        (OUT / f"lossless-{name}-{predictor}.jpg").write_bytes(data)
for sampling in ("444", "422", "420"):
    data = imagecodecs.jpeg8_encode(np.asarray(picture(33, 22).convert("CMYK")), level=85, colorspace="CMYK",
                                    outcolorspace="YCCK", subsampling=sampling)
    (OUT / f"ycck-{sampling}.jpg").write_bytes(data)
# Saturated coefficients: a table of quantization that makes them too large.
for i, name in enumerate(sorted(p for p in OUT.glob("*-1x1-*.jpg"))[:4]):
    data = bytearray(name.read_bytes())
    table = data.index(b"\xff\xdb")
    data[table + 5:table + 69] = bytes(255 - j for j in range(64))
    (OUT / f"overflow-{i}.jpg").write_bytes(data)

sound = sorted(p for p in OUT.glob("*.jpg") if p.stat().st_size > 400)
for i in range(150):
    data = bytearray(rng.choice(sound).read_bytes())
    scan = data.index(b"\xff\xda") + 10
    at = rng.randrange(scan, len(data))
    kind = rng.choice(["bytes", "header", "cut", "cut-eoi", "no-eoi", "deleted", "inserted", "marker", "restart"])
    if kind == "bytes":
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(scan, len(data))] = rng.randrange(256)
    elif kind == "header":
        data[rng.randrange(2, scan)] = rng.randrange(256)
    elif kind == "cut":
        del data[at:]
    elif kind == "cut-eoi":
        data[at:] = b"\xff\xd9"
    elif kind == "no-eoi":
        del data[-2 - rng.randrange(3):]
    elif kind == "deleted":
        del data[at:at + rng.randrange(1, 30)]
    elif kind == "inserted":
        data[at:at] = rng.randbytes(rng.randrange(1, 20))
    elif kind == "marker":
        data[at:at] = bytes([0xff, rng.randrange(1, 255)])
    elif kind == "restart":
        data[at:at + 2] = bytes([0xff, 0xd0 + rng.randrange(8)])
    (OUT / f"broken-{i:03d}-{kind}.jpg").write_bytes(data)

# Another scan of a component, with fewer coefficients: those of the first stay.
script = OUT / "scans"
script.write_text(SCANS["separate"][1])
for sampling in ["1x1", "2x2"]:
    name = f"scans-again-{sampling}"
    files = []
    for image in picture(50, 41), picture(50, 41).filter(ImageFilter.BLUR):
        cjpeg(name, image, "-quality", "95", "-sample", sampling, "-scans", str(script))
        files.append((OUT / f"{name}.jpg").read_bytes())
    sos = b"\xff\xda"
    (OUT / f"{name}.jpg").write_bytes(files[0][:-2] + sos + files[1].split(sos)[1] + files[0][-2:])
script.unlink()


def answer(path):
    try:
        image = Image.open(path).convert("RGB")
    except OSError:
        return None
    return {"width": image.width, "height": image.height, "sha256": hashlib.sha256(image.tobytes()).hexdigest()}


golden = {path.name: answer(path) for path in sorted(OUT.glob("*.jpg"))}
for name, found in list(golden.items()):
    if found and found["width"] * found["height"] > 1 << 20:
        del golden[name]  # a size that damage made large
shared = pathlib.Path(sys.argv[2])
jpegs = sorted(p for p in shared.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg") and ("odd" in p.parts or "imagenet_samples" in p.parts))
witnesses = {p.relative_to(shared).as_posix(): answer(p) for p in jpegs}
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    def add(name, data):
        archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    add("golden.json", json.dumps(golden, indent=1) + "\n")
    add("shared.json", json.dumps(witnesses, indent=1) + "\n")
    for name in golden:
        add(name, (OUT / name).read_bytes())
for found in golden, witnesses:
    print(len(found), "files,", sum(v is None for v in found.values()), "errors")
