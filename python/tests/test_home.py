"""Tests of what makes the package a home: features of anything, signatures that are written
out, the program's commands, and what notebooks show."""

from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

import mlrbfn
from mlrbfn import Detector, _images

ROOT = Path(__file__).parents[2]


class Room(unittest.TestCase):
    """Dark and light pictures, 40 of each, and features of theirs."""

    @classmethod
    def setUpClass(cls) -> None:
        room = tempfile.TemporaryDirectory()
        cls.addClassCleanup(room.cleanup)
        cls.room = Path(room.name)
        rng = np.random.default_rng(0)
        means = {"dark": 60, "light": 190, "new": 128}
        cls.arrays = {name: np.clip(rng.normal(mean, 20, (40, 6, 5, 3)), 0, 255).astype(np.uint8) for name, mean in means.items()}
        for name, arrays in cls.arrays.items():
            folder = cls.room / ("other" if name == "new" else "train") / name
            folder.mkdir(parents=True)
            for i, pixels in enumerate(arrays):
                Image.fromarray(pixels).save(folder / f"{i}.png")
        cls.images = np.concatenate([cls.arrays["dark"], cls.arrays["light"]])
        cls.y = np.repeat(["dark", "light"], 40)
        warnings.simplefilter("ignore", mlrbfn.DataWarning)
        cls.features = mlrbfn.extract(cls.room / "train", out=cls.room / "set", model="pixels", channels="rgb")
        cls.detector = mlrbfn.train(cls.features, epochs=10, calibration=0.3)


class Embedded(Room):
    def test_features_of_anything_are_those_of_files(self) -> None:
        at = [self.features.paths.index(f"{name}/{i}.png") for name in ("dark", "light") for i in range(40)]
        want = np.asarray(self.features)[at]
        files = [self.room / "train" / name / f"{i}.png" for name in ("dark", "light") for i in range(40)]
        loader = [(self.images[i : i + 16], list(map(int, self.y[i : i + 16] == "light"))) for i in range(0, 80, 16)]
        for how, images in {"arrays": self.images, "paths": files, "bytes": [f.read_bytes() for f in files], "PIL": map(Image.open, files), "mixed": [files[0], *self.images[1:]], "loader": loader}.items():
            with self.subTest(how):
                features = mlrbfn.embed(images, None if how == "loader" else self.y, model="pixels", channels="rgb")
                np.testing.assert_array_equal(features, want)
                self.assertEqual(features.fingerprint, self.features.fingerprint)
                self.assertEqual(features.y.tolist(), [str(int(v == "light")) for v in self.y] if how == "loader" else self.y.tolist())

    def test_a_detector_trained_on_them_judges_images(self) -> None:
        new = self.arrays["new"]
        of_images = mlrbfn.train(self.images, self.y, model="pixels", epochs=10, calibration=0.3)
        rows = np.array(self.features)
        of_rows = mlrbfn.train(rows, self.features.y, model=self.features, epochs=10, calibration=0.3)
        named = mlrbfn.train(np.array(mlrbfn.embed(self.images, model="pixels")), self.y, model=mlrbfn.embed(new, model="pixels"), epochs=10, calibration=0.3)
        for detector in (of_images, of_rows, named):
            self.assertGreater(detector.detect(new).ood.mean(), 0.5)
        np.testing.assert_array_equal(of_rows.detect(new).score, self.detector.detect(new).score)
        with self.assertRaisesRegex(ValueError, "the model has 90 features, and the rows have 4"):
            mlrbfn.train(np.ones((80, 4)), self.y, model=self.features)

    def test_many_images_go_to_the_disk(self) -> None:
        self.addCleanup(setattr, _images.Kept, "most", _images.Kept.most)
        want = np.array(mlrbfn.embed(self.images, model="pixels"))
        _images.Kept.most = 1000
        np.testing.assert_array_equal(mlrbfn.embed((image for image in self.images), model="pixels"), want)

    def test_features_are_kept_where_a_folder_is_named(self) -> None:
        mlrbfn.embed(self.images, self.y, model="pixels", out=self.room / "kept")
        again = mlrbfn.embed(self.arrays["new"], model="pixels", out=self.room / "kept")
        np.testing.assert_array_equal(mlrbfn.load_features(self.room / "kept"), again)
        self.assertEqual(len(again), 40)
        np.testing.assert_array_equal(again, mlrbfn.embed(self.arrays["new"], model="pixels"))

    def test_a_list_of_two_images_is_no_pair(self) -> None:
        image = self.arrays["new"][0]
        for pair in [[image, "b.jpg"], [np.array(["a.jpg", "b.jpg"]), np.array(["c.jpg", "d.jpg"])]]:
            self.assertTrue(all(label is None for _, label in _images.flat(pair)))
        self.assertEqual([label for _, label in _images.flat((image, "shoe"))], ["shoe"])
        # As a DataLoader gives labels that are text.
        self.assertEqual([label for _, label in _images.flat([[self.images[:2], ("a", "b")]])], ["a", "b"])
        with self.assertRaisesRegex(ValueError, "a dictionary has several entries"):
            list(_images.flat([{"image": image, "label": 0}]))

    def test_data_sets_end_at_their_length(self) -> None:
        class Circle:
            def __len__(self) -> int:
                return 3

            def __getitem__(self, i: int) -> bytes:
                return b"x" * (i % 3)

        self.assertEqual(len(list(_images.flat(Circle()))), 3)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_temporary_folders_go_with_their_owner(self) -> None:
        features = mlrbfn.embed(self.images, model="pixels")
        folder = Path(features.folder)
        code = "import os, sys, mlrbfn._native as n\nroom = n.Room()\npid = os.fork()\nif pid == 0: sys.exit()\nos.waitpid(pid, 0)\nprint(os.path.isdir(room.name), room.name)"
        r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        there, name = r.stdout.split()
        self.assertEqual((there, Path(name).exists(), folder.exists()), ("True", False, True))
        del features
        self.assertFalse(folder.exists())

    def test_faults(self) -> None:
        file = self.room / "train" / "dark" / "0.png"
        for images, y, text in [([], None, "no images"), (self.room, None, "extract computes"), ([file, file], None, "twice"), (self.images, ["a"], "80 rows of features, and the labels have the shape")]:
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                mlrbfn.embed(images, y, model="pixels")
        with self.assertWarnsRegex(mlrbfn.DataWarning, "could not be read"):
            features = mlrbfn.embed([self.images[0], b"no image", self.images[1]], ["a", "b", "c"], model="pixels")
        self.assertEqual((features.y.tolist(), list(features.errors)), (["a", "c"], ["000001"]))


class Signatures(unittest.TestCase):
    def test_options_are_written_out(self) -> None:
        for function, name, default in [(mlrbfn.train, "max_false_alarms", 0.05), (Detector.train, "scores", "mlrbfn"), (mlrbfn.extract, "exif", "ignore"), (mlrbfn.embed, "size", None),
                                        (Detector.detect, "device", "cpu"), (Detector.drift, "alpha", 0.01), (mlrbfn.inspect, "folds", 5), (Detector.export, "with_backbone", False)]:
            with self.subTest(function.__qualname__):
                parameters = inspect.signature(function).parameters
                self.assertEqual(parameters[name].default, default)
                self.assertNotIn("options", parameters)
                self.assertIn(f"\n{name} : ", function.__doc__)

    def test_they_are_those_of_the_flags(self) -> None:
        r = subprocess.run([sys.executable, ROOT / "scripts" / "python_options.py", "--check"], capture_output=True, text=True, check=False)
        self.assertEqual((r.returncode, r.stderr), (0, ""))

    def test_names_that_are_nearly_right(self) -> None:
        for given, meant in [("epoch", "epochs"), ("max_false_alarm", "max_false_alarms"), ("seedz", "seeds")]:
            with self.assertRaisesRegex(ValueError, f"there is no option {given}; did you mean {meant}\\?"):
                mlrbfn.train(np.ones((9, 2)), ["a"] * 9, **{given: 1})

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_types(self) -> None:
        with tempfile.TemporaryDirectory() as room:
            for line, fault in [("mlrbfn.train(x, max_false_alarms=0.05, seeds=[0, 1], calibration='cross:10')", ""), ('mlrbfn.train(x, max_false_alarms="5%")', 'Argument "max_false_alarms" to "train" has incompatible type'),
                                ("mlrbfn.train(x, epoch=3)", 'Unexpected keyword argument "epoch"'), ("d.detect(x, workers=2).predicted", ""), ("d.drift('a', by='size')", 'Argument "by" to "drift" of "Commands" has incompatible type')]:
                file = Path(room, "use.py")
                file.write_text(f"import mlrbfn\nx: object = 1\n\n\ndef use(d: mlrbfn.Detector) -> None:\n    {line}\n")
                r = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", file], capture_output=True, text=True, check=False, env=None)
                self.assertEqual(r.returncode, 1 if fault else 0, r.stdout + r.stderr)
                self.assertIn(fault, r.stdout)


class TheProgram(Room):
    def test_inspect(self) -> None:
        copies = np.concatenate([self.images, self.images[:2]])
        found = mlrbfn.inspect(mlrbfn.embed(copies, [*self.y, "dark", "light"], model="pixels", out=self.room / "copies"))
        self.assertEqual(found["rows"], 82)
        self.assertGreaterEqual(int((found.issues["kind"] == "duplicate").sum()), 2)
        self.assertIn("<iframe", found._repr_html_())
        mlrbfn.train(mlrbfn.load_features(self.room / "copies"), exclude=found.file, epochs=2)
        found = mlrbfn.inspect([self.features], test=mlrbfn.embed(self.images, model="pixels"), out=self.room / "inspected", no_images=True)
        self.assertGreater(found["issues"]["leak"], 0)
        self.assertTrue((self.room / "inspected" / "issues.csv").exists())

    def test_show(self) -> None:
        shown = self.detector.show()
        self.assertEqual([c["class"] for c in shown["classes"]], ["dark", "light"])
        self.assertIn("mlrbfn train", shown["command"])
        self.assertIn("dark/", shown.page.read_text("utf-8"))  # pictures of its map
        page = self.room / "page.html"
        self.detector.show(page=page)
        self.assertTrue(page.exists())
        of_arrays = mlrbfn.train(np.array(self.features), self.features.y, epochs=2)
        self.assertEqual(len(of_arrays.show()["classes"]), 2)

    def test_explain_and_report(self) -> None:
        new = self.arrays["new"][:3]
        said = self.detector.explain([*new, self.room / "train" / "dark"], nearest=2)
        self.assertEqual(len(said), 43)
        self.assertEqual([s["score"] for s in said[:3]], self.detector.detect(new).score.tolist())
        self.assertEqual(len(said[0]["nearest"]), 2)
        self.assertIsNone(said[2]["path"])
        self.assertTrue(said[3]["path"].endswith(".png"))
        self.assertTrue(said[0]["why"])
        report = self.detector.report(new)
        self.assertEqual([s["score"] for s in report["images"]], [s["score"] for s in said[:3]])
        self.assertIn("<iframe", report._repr_html_())

    def test_discover(self) -> None:
        folder = [*sorted((self.room / "train" / "dark").iterdir()), *sorted((self.room / "other" / "new").iterdir())]
        found = self.detector.discover([*folder, b"broken"], fdr=0.2)
        self.assertEqual((len(found), found.summary["images"], found.ok.sum(), found.summary["unreadable"]), (81, 81, 80, 1))
        self.assertGreater(found.new[40:80].mean(), found.new[:40].mean())
        self.assertEqual(found.new[:80].tolist(), (found.q_value[:80] <= 0.2).tolist())
        judged = self.detector.detect(folder)
        np.testing.assert_allclose(found.score[:80], judged.score)
        self.assertEqual(found.predicted[:80].tolist(), judged.predicted.tolist())
        rows = np.asarray(mlrbfn.embed(folder, model="pixels", channels="rgb"))
        same = self.detector.discover(rows, fdr=0.2)
        np.testing.assert_allclose(same.together, found.together[:80])
        self.assertEqual(found[:3].summary, found.summary)
        self.assertEqual((found.path[0], found.path[80]), (str(folder[0]), None))
        with self.assertRaisesRegex(mlrbfn.Error, "training"):
            mlrbfn.train(rows, np.repeat(["a", "b"], 40), epochs=2).discover(rows)

    def test_drift(self) -> None:
        with self.assertWarnsRegex(mlrbfn.DataWarning, "flags nothing"):
            mlrbfn.train(self.features, epochs=2, calibration=0).drift(self.room / "train")
        self.assertTrue(self.detector.drift([self.room / "other"], by="name", alpha=0.05)["alarm"])
        with self.assertRaisesRegex(ValueError, "did you mean alpha"):
            self.detector.drift(self.room, alfa=1)
        with self.assertRaises(FileNotFoundError):
            self.detector.drift(self.room / "none")

    def test_export(self) -> None:
        file = self.detector.export(self.room / "head.onnx", max_false_alarms=0.1)
        self.assertGreater(file.stat().st_size, 1000)

    def test_add(self) -> None:
        added = self.detector.add({"new": self.room / "other" / "new"}, out=self.room / "three.safetensors")
        self.assertEqual(added.classes_.tolist(), ["dark", "light", "new"])
        self.assertEqual(added.result["addition"]["added"][0]["class"], "new")
        self.assertLess(added.detect(self.arrays["new"]).ood.mean(), 0.5)

    def test_from_a_file(self) -> None:
        file = self.room / "loaded.safetensors"
        self.detector.save(file)
        loaded = Detector.load(file)
        self.assertEqual(loaded.show()["detector"], str(file))
        file.unlink()
        self.assertEqual(len(loaded.show()["classes"]), 2)


class Shown(Room):
    def test_notebooks(self) -> None:
        verdicts = self.detector.detect([self.room / "train" / "dark", self.arrays["new"][0]])
        index = np.repeat([0, 1, 2], 100)
        of_three = mlrbfn.train(np.random.default_rng(0).normal(size=(300, 8)) + 6 * np.eye(8)[index], np.array(["dark", "light", "new"])[index], epochs=2)
        for thing, parts in [(verdicts, ["<th>p_value</th>", "<img src=", "and 21 more verdicts"]), (of_three, ["AUROC", "<td>light</td>"]), (self.features, ["<td>40</td>", "<img src="]),
                             (mlrbfn.train(np.array(self.features), self.features.y, epochs=2, no_assess=True), ["dark, light"]), (self.detector.judge(self.features), ["confidence"])]:
            text = thing._repr_html_()
            for part in parts:
                self.assertIn(part, text)
        self.assertIn("<th>score</th>", verdicts[["class", "score"]]._repr_html_())
        evil = verdicts.copy().view(mlrbfn.Verdicts)
        evil["class"][0] = "<script>"
        self.assertNotIn("<script>", evil._repr_html_())


if __name__ == "__main__":
    unittest.main()
