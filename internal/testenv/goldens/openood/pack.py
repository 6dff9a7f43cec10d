"""Packs what generate_features.py and generate_scores.py wrote, as far as tests read it.

    PYTHONPATH=.setup/python python3 internal/testenv/goldens/openood/pack.py FOLDER

The arrays go into openood.zip as they are. Of a method's JSON, only the scores by the
float64 witness ("clean_float64", with their metrics), how they were made and the
tolerances go into scores/.
"""
import json
import sys
import zipfile
from pathlib import Path

from golden import HERE, save

KEYS = ("method", "hyper_parameters", "fit_on", "clean_float64", "tolerance")
with zipfile.ZipFile(HERE.parent / "openood.zip", "w") as archive:
    for file in sorted(Path(sys.argv[1]).iterdir()):
        if file.suffix == ".npy":
            # A fixed time, so that the same data make the same archive.
            archive.writestr(zipfile.ZipInfo(file.name), file.read_bytes(), zipfile.ZIP_DEFLATED, 9)
        elif file.suffix == ".json":
            method = json.loads(file.read_bytes())
            if "clean_float64" in method:
                save(file.stem, {key: method[key] for key in KEYS if key in method})
