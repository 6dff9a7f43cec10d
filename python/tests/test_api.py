"""Tests of the Python package: `make test-python` runs them."""

from __future__ import annotations

import doctest
import io
import json
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import unittest
import warnings
from pathlib import Path

import numpy as np

import mlrbfn
from mlrbfn import Detector, _arrays, _native


def clusters(n: int = 100, d: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns three classes of n rows each."""
    rng = np.random.default_rng(seed)
    index = np.repeat([0, 1, 2], n)
    x = rng.normal(size=(3 * n, d)) + 6 * np.eye(d)[index]
    return x.astype(np.float32), np.array(["cat", "dog", "owl"])[index]


def write_set(folder: str, x: np.ndarray, labels: np.ndarray) -> str:
    np.save(os.path.join(folder, "features.npy"), x)
    np.save(os.path.join(folder, "labels.npy"), labels)
    return folder


class Trained(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.x, cls.y = clusters()
        cls.detector = mlrbfn.train(cls.x, cls.y, epochs=20)

    def setUp(self) -> None:
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.room = room.name


class Arrays(Trained):
    def test_float32_is_not_copied(self) -> None:
        for x in (self.x, self.x[10:20], np.frombuffer(self.x.tobytes(), np.float32).reshape(self.x.shape)):
            self.assertTrue(np.shares_memory(_arrays.rows(x), x))

    def test_other_numbers_are_converted(self) -> None:
        want = self.detector.score(self.x)
        for x in (self.x.astype(np.float64), np.asfortranarray(self.x), self.x.astype(">f4"), self.x.tolist(), np.repeat(self.x, 2, axis=1)[:, ::2]):
            np.testing.assert_array_equal(self.detector.score(x), want)

    def test_exchange(self) -> None:
        class Exchange:  # has nothing but the exchange protocol
            def __init__(self, x: np.ndarray) -> None:
                self.x = x

            def __dlpack__(self, **how: object) -> object:
                return self.x.__dlpack__(**how)

            def __dlpack_device__(self) -> tuple[int, int]:
                return self.x.__dlpack_device__()

        self.assertTrue(np.shares_memory(_arrays.rows(Exchange(self.x)), self.x))

    def test_refused(self) -> None:
        for x, text in [
            (self.x[0], "two dimensions"),
            (self.x[:, :3], "rows of 8 features, and these have 3"),
            (self.x.astype(complex), "complex"),
            ([["a"] * 8], "type <U1"),
            (np.full((2, 8), np.nan), "NaN"),
            (np.full((2, 8), 1e300), "Inf"),
            (np.ma.masked_array(np.zeros((1, 8)), np.eye(1, 8)), "masked"),
        ]:
            with self.subTest(text), self.assertRaisesRegex(mlrbfn.OptionError, text):
                self.detector.judge(x)

    def test_empty(self) -> None:
        self.assertEqual(len(self.detector.judge(np.empty((0, 8)))), 0)

    def test_labels(self) -> None:
        index, classes = _arrays.labels([3, 1, 3, 2], 4)
        self.assertEqual((index.tolist(), classes.tolist()), ([2, 0, 2, 1], [1, 2, 3]))
        index, classes = _arrays.labels(np.array([1, np.nan, 0]), 3)
        self.assertEqual((index.tolist(), classes.tolist()), ([1, -1, 0], [0, 1]))
        index, classes = _arrays.labels(["b", None, "a"], 3)
        self.assertEqual((index.tolist(), classes.tolist()), ([1, -1, 0], ["a", "b"]))
        import pandas

        index, classes = _arrays.labels(pandas.Series(["b", pandas.NA, "a"], dtype="string"), 3)
        self.assertEqual((index.tolist(), classes.tolist()), ([1, -1, 0], ["a", "b"]))
        index, classes = _arrays.labels(np.array([0, -1, 1]), 3)  # as Features.labels has them
        self.assertEqual((index.tolist(), classes.tolist()), ([0, -1, 1], [0, 1]))
        index, classes = _arrays.labels(np.ma.masked_array([0, 5, 1], [False, True, False]), 3)
        self.assertEqual((index.tolist(), classes.tolist()), ([0, -1, 1], [0, 1]))
        for y in ([1, 2], [None, None, None], ["a", 1, None]):
            with self.subTest(y), self.assertRaises(ValueError):
                _arrays.labels(np.array(y, dtype=object), 3)


class Detectors(Trained):
    def test_verdicts(self) -> None:
        v = self.detector.judge(np.concatenate([self.x, np.full((3, 8), 40, np.float32)]))
        self.assertGreater(float(np.mean(v["class"][:300] == self.y)), 0.99)
        self.assertTrue(v.ood[300:].all())
        self.assertLess(float(v.ood[:300].mean()), 0.1)
        self.assertTrue((v.ood == (v.score < self.detector.threshold)).all())
        self.assertEqual(len(v[v.ood]), int(v.ood.sum()))
        np.testing.assert_array_equal(self.detector.score(self.x), v.score[:300])
        log = self.detector.log_confidences(self.x)
        np.testing.assert_array_equal(self.detector.classes_[log.argmax(axis=1)], v["class"][:300])
        import pandas

        frame = pandas.DataFrame(v)
        self.assertEqual(list(frame.columns), ["class", "label", "confidence", "score", "ood", "p_value"])
        pandas.testing.assert_frame_equal(frame, v.to_pandas())

    def test_what_training_says(self) -> None:
        self.assertEqual(self.detector.result["rows"]["train"] + self.detector.result["rows"]["validation"] + self.detector.result["rows"]["calibration"], 300)
        self.assertIn("3 classes, 1 head", self.detector.description)
        self.assertEqual(set(self.detector.assessment["classes"]), {"cat", "dog", "owl"})
        self.assertIn("3 classes", repr(self.detector))

    def test_file_and_pickle(self) -> None:
        file = Path(self.room, "größe.safetensors")
        self.detector.save(file)
        want = self.detector.judge(self.x)
        for again in (Detector.load(file), pickle.loads(pickle.dumps(self.detector))):
            for name in want.dtype.names:
                np.testing.assert_array_equal(again.judge(self.x)[name], want[name])

    def test_numbers_stay_numbers(self) -> None:
        y = np.unique(self.y, return_inverse=True)[1] * 10
        detector = mlrbfn.train(self.x, y, epochs=20)
        self.assertEqual(detector.classes_.tolist(), [0, 10, 20])
        np.testing.assert_array_equal(detector.score(self.x), self.detector.score(self.x))
        for kind in (int, np.uint8, float, bool):
            detector = mlrbfn.train(self.x, (y // 10).astype(kind), epochs=1, no_assess=True)
            detector.save(Path(self.room, "numbers"))
            again = Detector.load(Path(self.room, "numbers"))
            self.assertEqual(again.classes_.tolist(), detector.classes_.tolist())
            self.assertEqual(again.classes_.dtype.kind, "i" if kind is np.uint8 else detector.classes_.dtype.kind)

    def test_a_folder_and_an_array_give_the_same_detector(self) -> None:
        labels = np.unique(self.y, return_inverse=True)[1]
        features = mlrbfn.load_features(write_set(self.room, self.x, labels))
        self.assertIsInstance(features.x, np.memmap)
        np.testing.assert_array_equal(features.x, self.x)
        np.testing.assert_array_equal(features.labels, labels)
        self.assertEqual(features.paths, [])
        detector = mlrbfn.train(features, epochs=20)
        np.testing.assert_array_equal(detector.score(features), self.detector.score(self.x))
        self.assertGreater(detector.evaluate(features, np.full((5, 8), 40))["auroc"], 0.99)

    def test_a_folder_that_is_written_anew(self) -> None:
        features = mlrbfn.load_features(write_set(self.room, self.x, np.zeros(300, np.int64)))
        self.assertEqual(len(features.labels), 300)
        write_set(self.room, self.x[:50], np.zeros(50, np.int64))
        for do in (lambda: features.x, lambda: features.paths, lambda: mlrbfn.train(features)):
            with self.assertRaisesRegex(mlrbfn.FeaturesError, "written anew"):
                do()

    def test_features_of_another_model(self) -> None:
        sets = []
        for model in ("one", "other"):
            folder = os.path.join(self.room, model)
            os.mkdir(folder)
            features = mlrbfn.load_features(write_set(folder, self.x, np.unique(self.y, return_inverse=True)[1]))
            features.fingerprint = model
            sets.append(features)
        with self.assertRaisesRegex(mlrbfn.FeaturesError, "another model"):
            self.detector.evaluate(*sets)
        self.assertEqual(self.detector.evaluate(sets[0], sets[0])["auroc"], 0.5)

    def test_close(self) -> None:
        with pickle.loads(pickle.dumps(self.detector)) as detector:
            np.testing.assert_array_equal(detector.score(self.x), self.detector.score(self.x))
        for _ in range(2):
            with self.assertRaisesRegex(mlrbfn.Error, "closed"):
                detector.score(self.x)
            detector.close()

    def test_rows_without_a_label(self) -> None:
        y = np.where(np.arange(300) % 10 == 0, None, self.y)
        with self.assertWarnsRegex(mlrbfn.DataWarning, "images without a label are left out: 30"):
            detector = mlrbfn.train(self.x, y, epochs=2)
        self.assertEqual(detector.result["rows"]["unlabelled"], 30)
        for y, classes in [(np.arange(300) % 2 * 2 - 1, [-1, 1]), (np.arange(300) % 3 - 1, [0, 1])]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", mlrbfn.DataWarning)
                self.assertEqual(mlrbfn.train(self.x, y, epochs=1, no_assess=True).classes_.tolist(), classes)

    def test_many_threads(self) -> None:
        want, got = self.detector.score(self.x), [None] * 8

        def work(i: int) -> None:
            got[i] = self.detector.score(self.x)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for scores in got:
            np.testing.assert_array_equal(scores, want)


class Errors(Trained):
    def test_kinds(self) -> None:
        bad = Path(self.room, "bad.safetensors")
        bad.write_bytes(b"no detector")
        for do, kind, text in [
            (lambda: mlrbfn.train(self.x, self.y, epoch=3), ValueError, "there is no option epoch; did you mean epochs"),
            (lambda: mlrbfn.train(self.x, self.y, forest=3), ValueError, "there is no option forest; there are .*epochs"),
            (lambda: mlrbfn.train(self.x, self.y, epochs="many"), ValueError, "epochs many: it is a whole number"),
            (lambda: mlrbfn.train(self.x, self.y, epochs=-1), ValueError, "epochs -1: it must be positive"),
            (lambda: mlrbfn.train(self.x, self.y, max_false_alarms=3), ValueError, "max_false_alarms 3: a share lies between 0 and 1"),
            (lambda: mlrbfn.train(self.x, self.y, scores="best"), ValueError, "scores: .*best"),
            (lambda: mlrbfn.train(self.x), ValueError, "labels"),
            (lambda: mlrbfn.train(self.x, self.y[:9]), ValueError, "300 rows"),
            (lambda: mlrbfn.train(np.full((9, 2), np.nan), ["a"] * 9), ValueError, "row 0: .*NaN"),
            (lambda: mlrbfn.load_features(Path(self.room, "none")), FileNotFoundError, "mlrbfn extract makes it"),
            (lambda: mlrbfn.load_features(self.room), mlrbfn.FeaturesError, "not a feature set"),
            (lambda: Detector.load(Path(self.room, "none")), FileNotFoundError, "none"),
            (lambda: Detector.load(bad), mlrbfn.DetectorError, "bad.safetensors"),
            (lambda: self.detector.detect(Path(self.room, "none.jpg")), FileNotFoundError, "none.jpg"),
            (lambda: self.detector.detect([np.zeros((4, 4, 3), np.uint8)]), ValueError, "model: nothing says which model the features come from; name its folder"),
        ]:
            with self.subTest(text), self.assertRaisesRegex(kind, text) as raised:
                do()
            self.assertIsInstance(raised.exception, mlrbfn.Error)
            self.assertNotIn("--", str(raised.exception))

    def test_warnings_name_options(self) -> None:
        with self.assertWarnsRegex(mlrbfn.DataWarning, r"accept fewer \(max_false_alarms\)"):
            mlrbfn.train(self.x[::50], self.y[::50], epochs=2)

    def test_other_packages_may_be_missing(self) -> None:
        with self.assertRaisesRegex(ImportError, "to_pandas needs nothing_so: pip install nothing_so"):
            _native.optional("nothing_so.there", "to_pandas")

    def test_a_panic_is_an_exception(self) -> None:
        with self.assertRaisesRegex(mlrbfn.Error, "there is no function"):
            _native.call("nothing", {}, quick=True)
        with self.assertRaisesRegex(mlrbfn.Error, "there is no detector 999"):
            _native.call("info", {"detector": 999}, quick=True)

    @unittest.skipUnless(hasattr(signal, "pthread_kill"), "no signals to send")
    def test_interrupt(self) -> None:
        x, y = clusters(2000, 64)
        # What a shell starts in the background ignores it.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

        def interrupt() -> None:
            lib, number = _native.library(), next(_native._numbers) + 1
            while True:
                now = json.loads(_native._text(lib, lib.mlrbfn_progress(number)))
                if now.get("what") == "training" and now["done"] > 0:
                    os.kill(os.getpid(), signal.SIGINT)
                    return
                time.sleep(0.01)

        ready = threading.Thread(target=interrupt)
        ready.start()
        time.sleep(0.05)  # it has taken its number
        with self.assertRaises(KeyboardInterrupt):
            mlrbfn.train(x, y, epochs=100000)
        ready.join()
        self.assertFalse([t for t in threading.enumerate() if t.name.startswith("mlrbfn")])
        self.assertEqual(len(self.detector.judge(self.x)), 300)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_fork_is_refused(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads and fork
            global INHERITED
            INHERITED = self.detector
            with multiprocessing.get_context("fork").Pool(1) as pool, self.assertRaisesRegex(mlrbfn.ForkError, "spawn"):
                pool.apply(scores_inherited, (self.x,))

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_detector_sent_to_a_forked_process(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.detector.score(self.x)
            with multiprocessing.get_context("fork").Pool(1) as pool:
                sent = pool.apply_async(scores_of, (self.detector, self.x))
                with self.assertRaisesRegex(mlrbfn.ForkError, "spawn"):
                    sent.get(timeout=60)  # it waited for ever

    def test_spawn(self) -> None:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            np.testing.assert_array_equal(pool.apply(scores_of, (self.detector, self.x)), self.detector.score(self.x))


INHERITED: Detector | None = None


def scores_inherited(x: np.ndarray) -> np.ndarray:
    return INHERITED.score(x)


def scores_of(detector: Detector, x: np.ndarray) -> np.ndarray:
    return detector.score(x)


class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        from PIL import Image

        room = tempfile.TemporaryDirectory()
        cls.addClassCleanup(room.cleanup)
        cls.room = Path(room.name)
        rng = np.random.default_rng(0)
        for name, mean in (("dark", 60), ("light", 190)):
            Path(cls.room, "train", name).mkdir(parents=True)
            for i in range(40):
                pixels = np.clip(rng.normal(mean, 20, (6, 5, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(Path(cls.room, "train", name, f"{i}.png"))
        Path(cls.room, "train", "dark", "broken.png").write_bytes(b"no image")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cls.features = mlrbfn.extract(cls.room / "train", out=cls.room / "set", model="pixels", channels="rgb")
        cls.warnings = [str(w.message) for w in caught]
        cls.files = [str(w.filename) for w in caught]
        cls.detector = mlrbfn.train(cls.features, epochs=10, calibration=0.3, progress=False)

    def test_extract(self) -> None:
        f = self.features
        self.assertEqual((f.shape, f.classes, f.model), ((80, 90), ["dark", "light"], "pixels"))
        self.assertEqual(f.paths[0], "dark/0.png")
        self.assertEqual(list(f.errors), ["dark/broken.png"])
        self.assertIn("1 image could not be read", self.warnings[-1])
        self.assertEqual(self.files[0], __file__)
        self.assertEqual(f.to_pandas()["class"].value_counts().to_dict(), {"dark": 40, "light": 40})

    def test_all_ways_to_give_an_image_agree(self) -> None:
        from PIL import Image

        files = [self.room / "train" / c / f"{i}.png" for c in ("dark", "light") for i in range(5)]
        want = self.detector.judge(self.features.x[[self.features.paths.index(f.relative_to(self.room / "train").as_posix()) for f in files]])
        opened = [Image.open(f) for f in files]
        arrays = [np.asarray(image) for image in opened]
        for how, images in {"paths": files, "text": [str(f) for f in files], "bytes": [f.read_bytes() for f in files], "PIL": opened, "arrays": arrays,
                            "mixed": [files[0], arrays[1], *opened[2:]], "one array": np.stack(arrays), "generator": (a for a in arrays)}.items():
            with self.subTest(how):
                got = self.detector.detect(images if not isinstance(images, np.ndarray) else list(images))
                self.assertIs(type(got[0]["class"]), str)
                self.assertEqual(got.path.tolist(), [str(f) if how in ("paths", "text") or how == "mixed" and i == 0 else None for i, f in enumerate(files)])
                for name in want.dtype.names:
                    np.testing.assert_array_equal(got[name], want[name])
        for image in opened:
            image.close()

    def test_inputs_that_people_have(self) -> None:
        import pandas
        from PIL import Image

        files = [self.room / "train" / "dark" / f"{i}.png" for i in range(4)]
        arrays = np.stack([np.asarray(Image.open(f)) for f in files])
        want = self.detector.detect(files).score

        class Tensor:  # of PyTorch, as far as it is used
            def __init__(self, x: np.ndarray) -> None:
                self.x = x

            def detach(self) -> Tensor:
                return self

            def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
                return self.x

        first = np.moveaxis(arrays, 3, 1)
        loader = [[Tensor((first[i : i + 2] / 255).astype(np.float32)), Tensor(np.array([7, 8]))] for i in (0, 2)]
        frame = pandas.DataFrame({"path": [str(f) for f in files]})
        for how, images in {"a column": frame["path"], "paths in an array": np.array([str(f) for f in files]), "open files": [io.BytesIO(f.read_bytes()) for f in files],
                            "a batch": arrays, "channels first": first, "a tensor": Tensor(first), "a tensor from 0 to 1": Tensor((first / 255).astype(np.float32)),
                            "loader": loader, "pairs": [(a, 3) for a in arrays], "lists of lists": [[files[0]], [arrays[1], [arrays[2], arrays[3]]]]}.items():
            with self.subTest(how):
                np.testing.assert_array_equal(self.detector.detect(images).score, want)
        with open(files[0], "rb") as file:
            self.assertEqual(self.detector.detect(file).score[0], want[0])
        mixed = self.detector.detect([arrays[0], self.room / "train" / "light", files[1]])
        self.assertEqual((len(mixed), mixed.score[0], mixed.score[-1]), (42, want[0], want[1]))
        self.assertTrue(mixed.path[1].endswith(".png"))
        for images, text in [(frame, "give the one with the images, such as frame\\['path'\\]"), (Tensor(first.astype(np.float32)), "normalised"), ([(arrays, [1])], "4 images, and 1 labels")]:
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                self.detector.detect(images)

    def test_palettes_and_transparency(self) -> None:
        from PIL import Image

        original = Image.open(self.room / "train" / "dark" / "0.png")
        for kind, mode in (("png", "P"), ("jpg", "CMYK"), ("png", "LA"), ("png", "RGBA")):
            with self.subTest(mode):
                file = self.room / f"{mode}.{kind}"
                original.convert(mode).save(file, quality=100)
                with Image.open(file) as image:
                    np.testing.assert_allclose(self.detector.detect(image).score, self.detector.detect(file).score, atol=0.5 if mode == "CMYK" else 0)
        with self.assertWarnsRegex(mlrbfn.DataWarning, "four channels"):
            self.detector.detect(np.asarray(original.convert("CMYK")))

    def test_frames_of_verdicts(self) -> None:
        features = np.asarray(self.features)
        detector = mlrbfn.train(features, self.features.labels, epochs=2, calibration=0.3)
        v = detector.judge(features)
        self.assertEqual(v.to_pandas()["class"].dtype, np.int64)
        self.assertEqual(v.predicted.tolist(), v["class"].tolist())
        self.assertLessEqual({"label", "score", "ood", "p_value", "predicted", "to_pandas"}, set(dir(v)))

    def test_folders_and_faults(self) -> None:
        with self.assertWarnsRegex(mlrbfn.DataWarning, "1 image could not be read.*broken.png"):
            v = self.detector.detect(self.room / "train")
        self.assertEqual((len(v), int(v.ok.sum())), (81, 80))
        bad = v[~v.ok]
        self.assertEqual((len(bad), bad[0]["class"], bool(bad[0].ood)), (1, None, True))
        self.assertTrue(bad[0].path.endswith("broken.png") and bad[0].error)
        self.assertEqual(self.detector.classes_[v[v.ok].label].tolist(), v[v.ok].predicted.tolist())
        with self.assertRaises(IndexError):
            self.detector.classes_[v.label]
        with self.assertRaisesRegex(mlrbfn.Error, "broken.png"):
            self.detector.detect(self.room / "train", errors="raise")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.detector.detect([b"no image"], errors="ignore")
        with self.assertRaisesRegex(ValueError, "errors is"):
            self.detector.detect([], errors="drop")
        with self.assertRaisesRegex(ValueError, "image 0 is no path"):
            self.detector.detect([np.zeros((2, 2))])
        self.assertEqual(len(self.detector.detect([])), 0)


    def test_a_pil_image_is_turned_as_the_detector_says(self) -> None:
        from PIL import Image

        folder = self.room / "turned"
        exif, rng = Image.Exif(), np.random.default_rng(1)
        for i in range(40):
            (folder / str(i % 2)).mkdir(parents=True, exist_ok=True)
            exif[0x0112] = i % 8 + 1
            pixels = np.clip(np.linspace(0, 200, 8)[:, None, None] + rng.normal(20, 9, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / str(i % 2) / f"{i}.png", exif=exif)
        files = sorted(folder.rglob("*.png"))
        for how in ("apply", "ignore"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                features = mlrbfn.extract(folder, out=self.room / how, model="pixels", exif=how)
                detector = mlrbfn.train(features, epochs=1, no_assess=True)
            self.assertRegex(" ".join(str(w.message) for w in caught), "35 have an EXIF orientation")
            want = detector.detect(files)
            pictures = [Image.open(f) for f in files]
            np.testing.assert_array_equal(detector.detect(pictures).score, want.score)
            for picture in pictures:
                picture.close()
        self.assertFalse(np.array_equal(detector.detect(files).score, mlrbfn.train(mlrbfn.load_features(self.room / "apply"), epochs=1, no_assess=True).detect(files).score))

    def test_16_bit_grey(self) -> None:
        from PIL import Image

        folder, rng = self.room / "grey16", np.random.default_rng(1)
        for i in range(40):
            (folder / str(i % 2)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 1 << 16, (4, 4), dtype=np.uint16)).save(folder / str(i % 2) / f"{i}.png")
        with self.assertWarnsRegex(mlrbfn.DataWarning, r"40 have 16-bit grey.*\(scale_16_bit scales it\)"):
            features = mlrbfn.extract(folder, out=self.room / "clipped", model="pixels")
        self.assertGreater((features.x == 1).mean(), 0.9)
        scaled = mlrbfn.extract(folder, out=self.room / "scaled", model="pixels", scale_16_bit=True)
        self.assertLess((scaled.x == 1).mean(), 0.1)
        self.assertNotEqual(scaled.fingerprint, features.fingerprint)
        file = folder / scaled.paths[0]
        np.testing.assert_array_equal(scaled.x[0, :16], (np.asarray(Image.open(file)) >> 8).astype(np.float32).ravel() / np.float32(255))
        detector = mlrbfn.train(scaled, epochs=1, no_assess=True)
        np.testing.assert_array_equal(detector.detect([file, Image.open(file)]).score, detector.score(scaled)[[0, 0]])

    def test_patches(self) -> None:
        folder = Path(__file__).parents[2] / "extractor" / "testdata" / "exports" / "optimum-patches"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mlrbfn.DataWarning)
            features = mlrbfn.extract(self.room / "train" / "light", out=self.room / "places", model=folder, patches="last_hidden_state")
            detector = mlrbfn.train(features, epochs=1, calibration=0.3)
            seen = detector.detect([self.room / "train" / "light" / p for p in features.paths])
        self.assertEqual((features.shape[1], detector.n_features_in_), (6, 8))
        judged = detector.judge(features)
        self.assertEqual((judged.score.tolist(), judged.ood.tolist()), (seen.score.tolist(), seen.ood.tolist()))
        self.assertEqual(detector.score(features).tolist(), seen.score.tolist())
        with self.assertRaisesRegex(mlrbfn.OptionError, "rows of 8 features, and these have 6"):
            detector.judge(features.x)
        with self.assertRaisesRegex(mlrbfn.Error, "lack layers"):
            detector.judge(self.features)

    @unittest.skipUnless(Path("/proc/self/statm").exists(), "no Linux")
    def test_a_model_is_opened_once(self) -> None:
        folder = Path(__file__).parents[2] / "models" / "efficientnet-lite0"
        if not (folder / "model.onnx").exists():
            self.skipTest("the default backbone is missing: make setup")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mlrbfn.DataWarning)
            features = mlrbfn.extract(self.room / "train", out=self.room / "deep", model=folder)
            detector = mlrbfn.train(features, epochs=1, no_assess=True)
        file = self.room / "train" / "dark" / "0.png"

        def resident() -> int:
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def grown(times: int) -> int:
            before = resident()
            for _ in range(times):
                self.assertTrue(detector.detect(file).ok.all())
            return resident() - before

        grown(5)
        self.assertLess(grown(40), 30 << 20)  # 60 MB and more where each opens the model
        detector.close()


class Bars(unittest.TestCase):
    def test_tqdm(self) -> None:
        import tqdm.auto

        shown, x, y = io.StringIO(), *clusters(4000, 64)  # a second or two, ten looks at the progress
        usual, sys.stderr = sys.stderr, shown
        self.addCleanup(setattr, sys, "stderr", usual)
        mlrbfn.train(x, y, epochs=100, progress=True)
        sys.stderr = usual
        self.assertTrue(tqdm.auto.tqdm)
        self.assertRegex(shown.getvalue(), "training|class hold-out")  # which is seen depends on the time
        self.assertNotIn(": 0it", shown.getvalue())  # what has no count shows the time alone


def load_tests(_loader: object, tests: unittest.TestSuite, _pattern: object) -> unittest.TestSuite:
    for module in (mlrbfn._features, mlrbfn._detector):
        tests.addTests(doctest.DocTestSuite(module))
    return tests


if __name__ == "__main__":
    unittest.main()
