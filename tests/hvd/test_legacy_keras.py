"""`--legacy-keras` without TensorFlow: how it reaches the workers, and a genuine tensorflow_addons."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from commandline import rueda
from rueda.hvd import legacy_keras
from rueda.hvd.launching import environment_additions
from rueda.hvd.legacy_keras.old_arguments import OldNames
from rueda.hvd.runner.launch_plan import plan_job
from rueda.hvd.runner.options import parser
from rueda.world.launch.environment import forwarded

SHIM = str(legacy_keras.FOLDER)


def python(*words: str, **environ: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TF_USE_LEGACY_KERAS")}
    done = subprocess.run(
        [sys.executable, *words], env={**kept, **environ}, text=True, capture_output=True, timeout=60
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_plan_has_the_variables_and_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    plain = plan_job(["train.py"], workers=2)
    assert legacy_keras.VARIABLE not in plain.environment and plain.additions.packages == ("rueda.hvd.shim",)
    plan = plan_job(["train.py"], workers=2, legacy_keras=True)
    assert plan.environment["RUEDA_LEGACY_KERAS"] == "1"
    assert plan.additions.packages == ("rueda.hvd.shim", "rueda.hvd.legacy_keras.shim")
    assert ("TF_USE_LEGACY_KERAS" in plan.environment) == (find_spec("tf_keras") is not None)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    assert "TF_USE_LEGACY_KERAS" not in plan_job(["train.py"], workers=2, legacy_keras=True).environment
    environ = {"TF_USE_LEGACY_KERAS": "1", "KERAS_BACKEND": "jax", "TF_VAR_password": "secret of Terraform"}
    assert forwarded(environ, environment_additions({}).prefixes).keys() == {"TF_USE_LEGACY_KERAS", "KERAS_BACKEND"}
    assert parser().parse_args(["--legacy-keras", "-np", "2", "python", "train.py"]).legacy_keras is True


def test_under_mpirun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import importlib.util, os, sys\n"
        "print(sys.argv[1:], os.environ['RUEDA_LEGACY_KERAS'], importlib.util.find_spec('tensorflow_addons').origin)\n"
        "import horovod; print('torch' in sys.modules, 'tensorflow' in sys.modules)"
    )
    found = python("-m", "rueda.hvd", "--legacy-keras", str(script), "--lr", "1")
    assert found == f"['--lr', '1'] 1 {SHIM}/tensorflow_addons/__init__.py\nFalse False"


@pytest.mark.parametrize("order", [("genuine", "shim"), ("shim", "genuine")])
def test_a_genuine_tensorflow_addons_keeps_its_name(order: tuple[str, str], tmp_path: Path) -> None:
    package = tmp_path / "tensorflow_addons"
    package.mkdir()
    (package / "__init__.py").write_text("from tensorflow_addons import layers\nmaker = 'genuine'")
    (package / "layers.py").write_text("")
    folders = {"genuine": str(tmp_path), "shim": SHIM}
    path = os.pathsep.join(folders[name] for name in order)
    code = "import tensorflow_addons as tfa, tensorflow_addons.layers; print(tfa.maker, tfa.layers.__name__)"
    assert python("-c", code, PYTHONPATH=path) == "genuine tensorflow_addons.layers"


def test_a_job_of_slurm_names_another_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("run", "-np", "2", "--legacy-keras", "--slurm", "train.py") == 2
    assert "give the program as `python -m rueda.hvd --legacy-keras train.py`" in capsys.readouterr().err


def test_lines_are_printed_once_on_rank_0(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_keras, "_told", set())
    for rank in ("1", "0", "0"):
        launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        for name, value in {**launched, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}.items():
            monkeypatch.setenv(name, value)
        legacy_keras.note(f"line of rank {rank}")
    assert capsys.readouterr().err == "rueda: --legacy-keras: line of rank 0\n"


def test_old_names_of_metrics() -> None:
    assert OldNames(acc=0.25, accuracy=0.5)["acc"] == 0.25
    logs = OldNames(accuracy=0.5)
    assert logs.get("val_acc", 7) == 7 and "acc" not in logs and dict(logs) == {"accuracy": 0.5}
    with pytest.raises(KeyError, match="val_acc"):
        logs["val_acc"]
