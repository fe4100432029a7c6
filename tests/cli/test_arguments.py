"""Wrong command lines: all of them are told before torch is imported, which takes seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import evenkeel

# what is typed, some without a package -> what is said
WRONG = {
    "study --experiment padding --set lenghts=3": "no option lenghts; did you mean lengths",
    "study --experiment padding --set batch=many": "batch must be a whole number, but is 'many'",
    "study --experiment padding --set batch=0": "batch must be positive",
    "study --experiment padding --set lengths=99999": "lengths must be at most longest",
    "study --experiment padding --set padding": "--set takes name=value",
    "study --experiment padding --set cost.batch=3": "no experiment of this run is called 'cost'",
    "study --experiment padding --width 8": "has no option width",
    "study --experiment learning-rate --set rates=0.1,0.01": "rates must ascend",
    "study --experiment gradients-at-init --set arms=pre-layr": "did you mean pre-layer",
    "study --experiment bias-terms --set width=97": "width must be a multiple of heads (4)",
    "study --experiment cost --set widths=64,66": "widths must be a multiple of heads (4), but is 66",
    "study --experiment batchnorm-noise --set train_images=5000": "train_images must be from 1 to 1297",
    "study --experiment feature-scaling --set table=irs": "table must be of wine, breast_cancer",
    "study --experiment padding --out there.json": "cannot create directory there.json",
    "study --experiment padding --out full": "full holds mine.txt, which is not an experiment's",
    "study --experiment padding --out runs": "runs/padding already holds a run",
    "study --out full": "full is not empty and holds no study",
    "study --out done": "done already holds a study; continue it with --resume",
    "study --out there.json": "cannot create directory there.json",
    "study --resume": "--resume needs --out",
    "study --force --resume --out done": "give one",
    "study --text none.txt": "there is no file or directory none.txt",
    "study --text none*.txt": "no file matches none*.txt",
    "study --text nope://host/x.txt": "no filesystem is known for nope:// URLs",
    "study --storage-option region=eu": "but none is given",
    "study --from none.toml": "cannot read none.toml",
    "study --engine ray --address nowhere": "host:port or auto, but got 'nowhere'",
    "study --engine ray --address 127.0.0.1:1": "no Ray cluster answers at 127.0.0.1:1",
    "study --engine ray --address ray://host:10001": "Ray Client",
    "study --address auto": "give the engine ray with it",
    "explain 1 2 --groups 2": "LayerNorm has no option groups",
    "explain 1 2 --eps -1": "eps must be at least 0",
    "explain 1 2 --norm standardize --correction 3": "correction must be 0",
    "explain 1 2 --norm minmax --feature-range 1,0": "low below high",
    "explain 1 2 --norm image --scale 0": "scale must be one positive number",
    "explain 1 2 --norm group --groups 0": "groups must be at least 1",
    "explain 1 2 --mean 1": "mean and variance go together",
    "explain 1 2 --mean 1 --variance -1": "variance must not be negative",
    "explain 1 2 --axis 5": "axis 5 does not exist: the input has shape (2,)",
    "explain [1,[2": "the input is not JSON",
    "explain 1 2 --weight [1": "it is not JSON",
    "explain [[1,2],[3]]": "have different lengths",
    "explain [true]": "nested lists of numbers, nothing else",
    "explain 1 2 --weight []": "it is empty",
    "explain 1 2 --axis 0,0": "the axes must be different",
    "explain 1 2 --row 7": "there is no group 7 to show: there are 1",
    "explain 1 2 --weight 1,2,3": "weight has shape (3,), but this norm needs (2,)",
    "explain 1 2 --mean 1,2 --variance 1": "mean has 2 numbers, but LayerNorm has 1 groups here",
    "explain 1,2,3;4,5,6 --norm group --groups 2": "groups must divide the 3 channels",
    "explain 1,2,3;4,5,6 --mask 1,0,1": "the mask has shape (3,), but the input has (2, 3)",
    "explain 1,2;3,4 --norm image": "needs an axis with 3 channels",
    "explain 1 2 --backward --upstream 1,2,3": "the upstream gradient has shape (3,)",
    "explain none:x --layer norm --input there.npy": "there is no module none",
    "explain tiny:nope --layer norm --input there.npy": "tiny has no nope; did you mean build?",
    "convert none:x": "there is no module none; it must be in the present directory",
    "convert tiny.none:x": "there is no module tiny.none",
    "convert package.none:x": "there is no module package.none",
    "convert tiny.py:build": "write tiny:build",
    "convert tiny:nope": "tiny has no nope; did you mean build?",
    "doctor none:x --input there.npy": "there is no module none",
    "doctor tiny:build --input there.npy --loss none:x": "cannot load none:x",
    "doctor tiny:build --input there.npy --loss x": "'x' does not name a function",
    "doctor tiny:build --input there.csv": "--input must end in .npy or .npz",
    "doctor tiny:build --input there.npy --stats there.csv": "path ending in .json or .safetensors",
    "doctor there.csv": "is no .safetensors file",
    "doctor full": "holds no .safetensors files",
    "data fit full/mine.txt --out s.json": "the name tells no format",
    "data fit full --out s.json": "the directory full holds no data: none of its 1 files ends in",
    "data fit s3:// --out s.json": "s3:// names no bucket",
    "data fit https:///x.csv --out s.json": "names no host",
    "data fit https://[1/x.csv --out s.json": "is no URL",
    "data fit https://me:secret@host/x.csv --out s.json": "must hold no user and no password",
    "data fit https://host/*.csv --out s.json": "patterns do not work with web addresses",
    "data fit https://host:99999/x.csv --out s.json": "is no URL: Port out of range",
    "data fit file://host/x.csv --out s.json": "names the machine 'host'",
    "data fit file:///none.csv --out s.json": "there is no file or directory /none.csv",
    "data fit simplecache::s3://b/x.csv --out s.json": "simplecache::s3://… chains filesystems",
    "data fit s3://b/x.csv --out s.json --storage-option region=a --storage-option region=b": "region is given twice",
    "data fit nope://host/x.csv --out s.json": "no filesystem is known for nope:// URLs",
    "data fit none*.csv --out s.json": "no file matches none*.csv",
    "data fit there.csv --out s.txt": "--out must end in .json or .safetensors",
    "data fit there.csv --out https://host/s.json": "web addresses are read, not written",
    "data fit there.csv --out s3://bucket/s.txt": "--out must end in .json or .safetensors",
    "data fit there.csv --out s.json --storage-option region=eu": "but none is given",
    "data fit there.csv --out s.json --address auto": "give the engine ray with it",
    "data fit there.csv --out s.json --engine ray --address nowhere": "host:port or auto",
    "data show s3://bucket/x.txt": "path ending in .json or .safetensors",
    "data apply there.csv --stats there.json --out out.txt": "--out must end in .parquet",
    "data apply there.csv --stats there.json --out there.csv --force": "there.csv is the input",
    "data apply tables --stats there.json --out out.csv": "tables is a directory, so the output is one",
    "data apply there.csv --stats none.json --out out.csv": "there is no file none.json",
    "data check there.csv --stats there.json --max-missing 2": "the limit missing must be between 0 and 1",
    "data merge there.json there.json --out x.json": "there.json is given twice",
    "info extra": "unexpected extra argument",
    "study without plotly": "a report needs the package plotly",
    "study --engine ray without ray": "pip install 'evenkeel[ray]'",
    "study --experiment feature-scaling without sklearn": "pip install 'evenkeel[data]'",
    "explain 1 2 --html new.html without jinja2": "pip install 'evenkeel[report]'",
    "convert model without transformers": "pip install transformers",
    "data fit tables/x.csv --out s.json without pyarrow": "this source needs the package pyarrow",
    "data fit tables/x.csv --out s.json --quantiles without datasketches": "quantiles need the package datasketches",
    "data fit https://host/x.csv --out s.json without fsspec": "pip install 'evenkeel[stores]'",
    "data show there.json without sklearn": "scikit-learn >= 1.6, which is not installed",
}
# The script is called `evenkeel`, as the program is, so that the package imports nothing by itself.
SCRIPT = """
import contextlib, io, json, sys
from evenkeel.cli import main

for line in sys.stdin.read().splitlines():
    words, _, missing = line.partition(" without ")
    sys.modules |= dict.fromkeys(missing.split())  # as if it were not installed
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words.split())
    for name in missing.split():
        del sys.modules[name]
    print(json.dumps([line, code, said.getvalue(), sorted({"torch", "numpy", "pyarrow"} & set(sys.modules))]))
"""


def run_lines(lines, folder):
    """The lines with their exit codes, what they say, and the heavy modules that are imported by then."""
    (folder / "evenkeel").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(evenkeel.__file__).parents[1])}
    environment.pop("RAY_ADDRESS", None)
    script = [sys.executable, folder / "evenkeel"]
    pipes = {"input": "\n".join(lines), "capture_output": True, "text": True}
    result = subprocess.run(script, cwd=folder, env=environment, check=True, **pipes)
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]


def make_files(folder):
    for name in ("full", "done", "runs/padding", "package", "tables", "model"):
        (folder / name).mkdir(parents=True)
    for name in ("full/mine.txt", "there.json", "there.csv", "there.npy", "done/study.json", "package/__init__.py"):
        (folder / name).touch()
    for name in ("runs/padding/experiment.json", "tables/x.csv", "model/config.json", "model/model.safetensors"):
        (folder / name).touch()
    (folder / "tiny.py").write_text("import torch\n\n\ndef build():\n    return torch.nn.LayerNorm(4)\n")


def test_wrong_command_lines_are_told_before_torch_is_imported(tmp_path):
    make_files(tmp_path)
    told = run_lines(WRONG, tmp_path)
    assert [line for line, *_ in told] == list(WRONG)
    for line, code, said, heavy in told:
        assert (line, code, heavy) == (line, 2, [])
        assert WRONG[line] in said
        assert said.count("\n") == 1


def test_the_check_sees_torch(tmp_path):
    make_files(tmp_path)
    ((_, code, said, heavy),) = run_lines(["explain --file there.csv"], tmp_path)
    assert (code, "torch" in heavy) == (2, True), said
