"""Packs what generate_features.py and generate_scores.py wrote, as far as tests read it.

    python3 internal/testenv/goldens/openood/pack.py FOLDER internal/testenv/goldens/openood.zip

Arrays go in as they are. Of a method's JSON, only the scores by the float64 witness
("clean_float64", with their metrics), how they were made and the tolerances go in.
"""
import json
import sys
import zipfile
from pathlib import Path

KEYS = ("method", "hyper_parameters", "fit_on", "clean_float64", "tolerance")
folder, out = sys.argv[1:]
with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:

    def add(name, data):
        # A fixed time, so that the same data make the same archive.
        archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)

    for file in sorted(Path(folder).iterdir()):
        if file.suffix == ".npy":
            add(file.name, file.read_bytes())
        elif file.suffix == ".json":
            method = json.loads(file.read_bytes())
            if "clean_float64" in method:
                add(file.name, json.dumps({key: method[key] for key in KEYS if key in method}))
