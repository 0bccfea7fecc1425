"""The course's scripts of `examples/horovod-keras` run on 2 workers: by `rueda run`, `rueda horovodrun` and mpirun."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from realdata import real_data
from rueda.hvd.alias import FOLDER

EXAMPLES = Path(__file__).parents[2] / "examples" / "horovod-keras"
SMALL = ["--epochs", "2", "--batch-size", "8"]
# The five variants in one launch, since each start with TensorFlow costs seconds: every rank runs them one by one.
VARIANTS = """
import os, runpy, sys
script, *words = sys.argv[1:]
sys.path.insert(0, os.path.dirname(script))
for variant in ("naive", "batch-norm", "scaling", "warmup", "lamb"):
    sys.argv = [script, "--variant", variant, "--result", f"{variant}.json", *words]
    runpy.run_path(script, run_name="__main__")
"""


def run(command: list[str], cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TF_USE_LEGACY_KERAS")}
    environ |= {"RUEDA_DATA": str(real_data()), "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        command, cwd=cwd, env={**variables, **environ}, text=True, capture_output=True, timeout=280
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def rueda(*words: str) -> list[str]:
    return [sys.executable, "-m", "rueda", *words]


def script(name: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name)]


def test_the_scripts_know_only_horovod() -> None:
    names = ["cifar10.py", "cifar10_old.py", "fashion_mnist.py", "fashion_mnist_old.py"]
    for name in names:
        text = (EXAMPLES / name).read_text()
        assert "import horovod.tensorflow.keras as hvd\n" in text
        assert not re.search(r"^\s*(import|from) rueda", text, re.MULTILINE)
        for step in ("hvd.init()", "hvd.local_rank()", "hvd.DistributedOptimizer(opt", "hvd.rank() == 0"):
            assert step in text, f"{name} lacks {step}"
        assert "BroadcastGlobalVariablesCallback(0)" in text and "// hvd.size()" in text


def test_the_five_variants_on_cifar10(tmp_path: Path) -> None:
    (tmp_path / "variants.py").write_text(VARIANTS)
    words = [*SMALL, "--examples", "64", "--warmup-epochs", "1", "--checkpoint", "best.keras"]
    done = run([*rueda("run", "-np", "2"), sys.executable, "variants.py", *script("cifar10.py")[1:], *words], tmp_path)
    found = {row["variant"]: row for row in (json.loads(file.read_text()) for file in tmp_path.glob("*.json"))}
    assert found.keys() == {"naive", "batch-norm", "scaling", "warmup", "lamb"}
    assert {name: row["learning_rate"] for name, row in found.items()} == {
        "naive": 0.001, "batch-norm": 0.001, "scaling": 0.002, "warmup": 0.002, "lamb": 0.01,
    }  # fmt: skip
    for row in found.values():  # 64 examples are 4 steps of 8 on each of 2 workers
        assert row["workers"] == 2 and row["batch"] == 16 and row["updates"] == 8
        assert 0 <= row["test_accuracy"] <= 1
    assert re.search(r"^\[0\].*finished gradual learning rate warmup to 0\.002\.?", done.stdout, re.MULTILINE)
    assert (tmp_path / "best.keras").stat().st_size > 1_000_000


def test_fashion_mnist_by_horovodrun(tmp_path: Path) -> None:
    words = [*SMALL, "--examples", "48", "--partition", "random", "--warmup-epochs", "1"]
    done = run([*rueda("horovodrun", "-np", "2"), *script("fashion_mnist.py"), *words], tmp_path)
    assert re.findall(r"^\[(\d)\]<stdout>:Test accuracy: [01]\.\d+$", done.stdout, re.MULTILINE) == ["0"]
    assert (tmp_path / "fashion_mnist.keras").is_file()


OLD = {
    "cifar10_old.py": ["--examples", "48"],
    "fashion_mnist_old.py": ["--examples", "48", "--warmup-epochs", "1"],
}


@pytest.mark.parametrize(("name", "keras"), [("cifar10_old.py", "tf_keras"), ("fashion_mnist_old.py", "keras")])
def test_old_scripts(name: str, keras: str, tmp_path: Path) -> None:
    """They run with tf_keras, which is chosen by itself here, and with Keras 3."""
    environ = {"TF_USE_LEGACY_KERAS": "0"} if keras == "keras" else {}
    words = [*SMALL, *OLD[name]]
    done = run([*rueda("run", "--legacy-keras", "-np", "2"), *script(name), *words], tmp_path, **environ)
    told = [line for line in done.stderr.splitlines() if "rueda: --legacy-keras: " in line]
    assert all(line.startswith("[0]") for line in told) and len(told) == len(set(told))
    assert len(list(tmp_path.glob("*.h5"))) == (2 if name == "cifar10_old.py" else 1)
    if keras == "keras":
        assert any("SGD(lr=0.02) is taken as learning_rate=0.02" in line for line in told)
        assert any("SGD(decay=0.0001) is taken" in line for line in told)
        assert any("compile(experimental_run_tf_function=False) has no effect" in line for line in told)
        assert any("fit_generator is taken as fit" in line for line in told)
        assert re.search(r"^\[0\] Test accuracy: [01]\.\d+$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", ["fashion_mnist.py", "cifar10_old.py"])
def test_under_mpirun(name: str, tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not installed")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
    options = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version else []
    command = [mpirun, *options, "-np", "2", sys.executable]
    if name == "fashion_mnist.py":  # unmodified, with the folder on the path
        words = [*SMALL, "--examples", "48", "--warmup-epochs", "1"]
        done = run([*command, *script(name)[1:], *words], tmp_path, PYTHONPATH=str(FOLDER))
        assert len(re.findall(r"^Test accuracy: [01]\.\d+$", done.stdout, re.MULTILINE)) == 1
    else:
        words = [*SMALL, "--examples", "48", "--adam"]
        done = run([*command, "-m", "rueda.hvd", "--legacy-keras", *script(name)[1:], *words], tmp_path)
        assert len(re.findall(r"Adam\(lr=0\.01\) is taken as learning_rate=0\.01", done.stderr)) == 1
        assert (tmp_path / "checkpoint-2.h5").is_file()


def test_networks_and_table(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = runpy.run_path(str(EXAMPLES / "networks.py"))
    counts = [networks["lecture_network"](batch_norm=norm).count_params() for norm in (False, True)]
    assert counts == [482_442, 490_378]
    assert networks["residual_network"](10).count_params() == 17_130_954
    table: Any = runpy.run_path(str(EXAMPLES / "table.py"))
    rows = [
        {"row": "naive", "workers": 2, "updates": 576, "test_accuracy": accuracy, "train_accuracy": 0.5}
        for accuracy in (0.5, 0.52)
    ]
    made = table["markdown"]({"rows": rows, "epochs": 12})
    assert made.splitlines()[2] == "| 2 | naive | 51.0 ± 1.4 % | 50.0 ± 0.0 % | 576 | 2 | 47.6 ± 1.0 % |"
    mark = "<!-- horovod-keras-cifar10 -->\n\n"
    assert table["with_table"](f"a\n{mark}| old |\n| row |\n\nb\n", "| new |") == f"a\n{mark}| new |\n\nb\n"
    assert table["with_table"](f"a\n{mark}b\n", "| new |") == f"a\n{mark}| new |\n\nb\n"
