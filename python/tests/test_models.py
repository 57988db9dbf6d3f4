"""Folders with a checked task, by the real program; PyTorch's part is replaced by a model that it exported before."""

import os
import shutil
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np

import florin
from florin import FlorinError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NET, TABLE = EXAMPLES / "table/net.pt2", EXAMPLES / "table/diabetes.csv"


class Model:
    """The names of the parameters of `net.pt2`, which is all that an export reads of the model itself."""

    def __init__(self, frozen=()):
        names = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
        self.parameters = [(name, mock.Mock(requires_grad=name not in frozen)) for name in names]

    def named_parameters(self):
        return iter(self.parameters)


@unittest.skipUnless(shutil.which(os.environ.get("FLORIN", "florin")), "there is no program `florin`")
class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        write = lambda model, example, file: shutil.copy(NET, file)
        self.enterContext(mock.patch("florin.models._write", write))
        rng = np.random.default_rng(1)
        self.rows = rng.normal(size=(300, 10)).astype(np.float32)
        self.target = self.rows[:, 0] * 2.0 + rng.normal(size=300)
        self.task = self.folder / "task"

    def export(self, path=None, model=None, **options):
        return florin.export(model or Model(), None, path or self.task, **options)

    def refused(self, code, **options):
        before = sorted(self.folder.iterdir())
        with self.assertRaises(FlorinError) as raised:
            self.export(**options)
        self.assertEqual(raised.exception.code, code, raised.exception)
        self.assertEqual(sorted(self.folder.iterdir()), before, "a refusal leaves nothing behind")
        return raised.exception

    def test_arrays_become_a_checked_task(self):
        found = self.export(data=(self.rows, self.target), loss="squared", loss_bound=3.0)
        self.assertEqual(found["model"]["loss"], {"bound": "3", "kind": "squared"})
        self.assertEqual((found["holdout"]["rows"], found["file"]), (300, str(self.task / "task.toml")))
        files = sorted(file.name for file in self.task.iterdir())
        self.assertEqual(files, ["labels.npy", "model.pt2", "rows.npy", "task.toml"])
        # The folder can be moved: the task names its files without folders.
        moved = self.task.rename(self.folder / "moved")
        again = florin.program.run(["task", "check", str(moved / "task.toml")])
        self.assertEqual(again["holdout"], found["holdout"])

    def test_a_source_is_relative_to_the_working_directory(self):
        shutil.copy(TABLE, self.folder)
        here = Path.cwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, here)
        for name, source in (("a", "csv:diabetes.csv#progression"), ("b", "diabetes.csv#progression")):
            found = self.export(name, data=source, loss="squared")
            self.assertEqual(found["holdout"]["rows"], 442)
        error = self.refused("FILE_NOT_FOUND", data="csv:other.csv#progression", loss="squared")
        self.assertIn(str(self.folder.resolve()), error.remedy)

    def test_trainable_parameters_are_named_or_follow_from_the_model(self):
        def tensors(name, **options):
            found = self.export(self.folder / name, data=(self.rows, self.target), loss="squared", **options)
            return [tensor["name"] for tensor in found["model"]["tensors"]]

        self.assertEqual(tensors("a", trainable="3.*"), ["3.weight", "3.bias"])
        frozen = Model(frozen=["0.weight", "0.bias", "1.weight"])
        self.assertEqual(tensors("b", model=frozen), ["1.bias", "3.weight", "3.bias"])
        self.assertEqual(len(tensors("c")), 6)
        error = self.refused("INVALID_MODEL", trainable=["lora*"])
        self.assertIn("0.weight", error.message)
        self.refused("NOTHING_TRAINABLE", model=Model(frozen=[name for name, _ in Model().parameters]))

    def test_without_data_the_command_is_returned(self):
        found = self.export(loss="squared", trainable=["3.*"])
        command = ["task", "new", "--model", "model.pt2", "--loss=squared", "--trainable=3.*", "--data", "SOURCE"]
        self.assertEqual(found["command"], ["florin", *command, "--out", "task.toml"])
        self.assertEqual([file.name for file in self.task.iterdir()], ["model.pt2"])

    def test_a_file_is_written_as_before(self):
        found = self.export(self.folder / "net.pt2")
        self.assertEqual(found["inputs"][0]["name"], "0.weight")
        self.refused("FOLDER_EXPECTED", path=self.folder / "other.pt2", loss="squared")

    def test_refusals_have_the_code_of_the_program_and_leave_nothing(self):
        data = (self.rows, self.target)
        self.refused("INVALID_MODEL", data=(self.rows[:, :4], self.target), loss="squared")
        self.refused("INVALID_DATA", data=data)  # cross-entropy needs classes
        self.refused("USAGE", data=data, loss="cosine")
        for bad in ((self.rows, self.target[:5]), (self.rows * np.nan, self.target), (["a"], [1]),
                    (self.rows[:, 0], self.target), (self.rows, None), (self.rows, self.rows),
                    [self.rows, self.target], ([[1], [2, 3]], [1, 2])):  # fmt: skip
            self.refused("INVALID_DATA", data=bad, loss="squared")
        self.task.mkdir()
        (self.task / "notes").touch()
        self.refused("FILE_EXISTS", data=data, loss="squared")

    def test_an_empty_folder_is_used(self):
        self.task.mkdir()
        self.export(data=(self.rows, self.target), loss="squared")
        self.assertTrue((self.task / "task.toml").exists())

    def test_targets_stand_behind_the_inputs_where_the_loss_has_no_label(self):
        found = self.export(data=(self.rows, self.target > 0), loss="binary")
        self.assertEqual((found["model"]["targets"], found["data"]["width"]), (1, 11))


class Examples(unittest.TestCase):
    def refused(self, code, torch, example):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(sys.modules, {"torch": torch}):
            with self.assertRaises(FlorinError) as raised:
                florin.export(Model(), example, Path(folder) / "task")
            self.assertEqual((raised.exception.code, os.listdir(folder)), (code, []))

    def test_without_torch_nothing_is_written(self):
        self.refused("TORCH_MISSING", None, None)

    def test_an_example_needs_two_rows_in_each_input(self):
        class Tensor:
            def __init__(self, *shape):
                self.shape = shape

        torch = mock.Mock(Tensor=Tensor)
        for example in (5, Tensor(), Tensor(1, 10), (Tensor(4, 10), Tensor(3, 2)), (), (Tensor(4), None)):
            self.refused("INVALID_EXAMPLE", torch, example)


class Programs(unittest.TestCase):
    def test_a_missing_program_has_a_remedy(self):
        with mock.patch.dict(os.environ, {"FLORIN": "/no/such/florin"}), self.assertRaises(FlorinError) as raised:
            florin.program.run(["model", "show", "x"])
        self.assertEqual(raised.exception.code, "PROGRAM_MISSING")
        self.assertIn("FLORIN=", raised.exception.remedy)

    def test_failures_without_json_keep_the_programs_words(self):
        script = "import sys; sys.exit('broken: ' + ' '.join(sys.argv[1:]))"
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "florin"
            program.write_text(f"#!{sys.executable}\n{script}\n")
            program.chmod(0o755)
            with mock.patch.dict(os.environ, {"FLORIN": str(program)}), self.assertRaises(FlorinError) as raised:
                florin.program.run(["model", "show"])
            self.assertEqual(raised.exception.code, "PROGRAM_FAILED")
            self.assertIn("broken: model show --json", raised.exception.message)
            program.write_text(f"#!{sys.executable}\nprint('ready')\n")
            with mock.patch.dict(os.environ, {"FLORIN": str(program)}), self.assertRaises(FlorinError) as raised:
                florin.program.run(["model", "show"])
            self.assertEqual(raised.exception.code, "INVALID_OUTPUT")

    def test_errors_show_code_causes_and_remedy(self):
        error = FlorinError("CODE", "it failed", ["the disk is full"], "free some space")
        self.assertEqual(str(error), "it failed [CODE]\n  because: the disk is full\n  remedy: free some space")


class Traces(unittest.TestCase):
    def test_folders_of_the_machine_are_stripped_and_nothing_else(self):
        trace = r'"trace": "File \"/home/me/x/net.py\", line 3\nFile \"/opt/py/site-packages/torch/nn.py\", line 9"'
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "a.pt2"
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("a/models/model.json", trace)
                archive.writestr("a/data/weights/weight_0", bytes(range(256)) * 1_000)
            florin.strip_paths(file)
            first = file.read_bytes()
            with zipfile.ZipFile(file) as archive:
                text = archive.read("a/models/model.json").decode()
                weight = archive.getinfo("a/data/weights/weight_0")
                self.assertEqual(archive.read(weight), bytes(range(256)) * 1_000)
                self.assertEqual(weight.compress_type, zipfile.ZIP_STORED)
            self.assertEqual(text, trace.replace("/home/me/x/", "").replace("/opt/py/", ""))
            florin.strip_paths(file)
            self.assertEqual(file.read_bytes(), first)
            self.assertEqual(os.listdir(folder), ["a.pt2"])


if __name__ == "__main__":
    unittest.main()
