"""Scripts written for Horovod run unmodified: under `rueda run`, under mpirun, and alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import QUICK_START
from rueda.hvd.alias import FOLDER

EXAMPLES = Path(__file__).parents[2] / "examples" / "horovod"
RUN = [sys.executable, "-m", "rueda", "run"]


def run(command: list[str], cwd: Path, **environ: str) -> str:
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": QUICK_START, **environ}
    done = subprocess.run(command, cwd=cwd, env=variables, text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_scripts_know_only_horovod() -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) == 4
    for script in scripts:
        text = script.read_text()
        assert "import horovod.torch as hvd\n" in text and not re.search(r"^\s*(import|from) rueda", text, re.MULTILINE)


def test_mnist_learns_on_three_workers(tmp_path: Path) -> None:
    words = ["--epochs", "1", "--examples", "3072", "--batch-size", "16", "--lr", "0.02", "--fp16-allreduce"]
    out = run([*RUN, "-np", "3", sys.executable, str(EXAMPLES / "mnist.py"), *words], tmp_path)
    tested = re.findall(r"^\[(\d)\] Test set: Average loss: \S+, Accuracy: (\S+)%$", out, re.MULTILINE)
    assert [rank for rank, _ in tested] == ["0"] and float(tested[0][1]) > 95, out
    assert {line[1] for line in out.splitlines() if "Train Epoch" in line} == {"0", "1", "2"}


TWICE = """
import os, runpy, sys, time
script, *words = sys.argv[1:]
if os.environ["RANK"] == "0":
    sys.argv = [script, "--make-data", "data"]
    runpy.run_path(script, run_name="__main__")
    open("made", "w").close()
while not os.path.exists("made"):
    time.sleep(0.05)
for epochs in ("1", "2"):  # the second time it finds the checkpoint of the first
    sys.argv = [script, *words, "--epochs", epochs]
    runpy.run_path(script, run_name="__main__")
"""


def test_imagenet_trains_and_resumes(tmp_path: Path) -> None:
    script = str(EXAMPLES / "imagenet.py")
    (tmp_path / "twice.py").write_text(TWICE)
    words = ["--batches-per-allreduce", "2", "--batch-size", "4", "--gradient-predivide-factor", "2"]
    out = run([*RUN, "-np", "2", sys.executable, "twice.py", script, *words], tmp_path)
    assert len(list(tmp_path.glob("data/train/class-*/*.ppm"))) == 64
    seen = re.findall(r"^\[(\d)\] (Train|Validate) Epoch #(\d): loss=(\S+), accuracy=(\S+)$", out, re.MULTILINE)
    assert [(rank, phase, epoch) for rank, phase, epoch, _, _ in seen] == [
        ("0", "Train", "1"), ("0", "Validate", "1"), ("0", "Train", "2"), ("0", "Validate", "2"),
    ]  # fmt: skip
    assert float(seen[2][3]) < float(seen[0][3]), "the second epoch goes on from the first"
    assert sorted(file.name for file in tmp_path.glob("*.pt")) == ["checkpoint-1.pt", "checkpoint-2.pt"]


def test_the_benchmark_under_mpirun_and_alone(tmp_path: Path) -> None:
    small = ["--num-iters", "2", "--num-batches-per-iter", "1", "--width", "4", "--image-size", "16"]
    script = [str(EXAMPLES / "synthetic_benchmark.py"), *small]
    out = run([sys.executable, "-m", "rueda.hvd", *script], tmp_path)
    assert re.search(r"^Total img/sec on 1 CPU\(s\): \d", out, re.MULTILINE), out
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun here: the benchmark ran alone only")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
    options = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version else []
    out = run(
        [mpirun, *options, "-np", "2", sys.executable, *script],
        tmp_path,
        PYTHONPATH=os.pathsep.join([str(FOLDER), QUICK_START]),
    )
    assert re.search(r"^Number of CPUs: 2$", out, re.MULTILINE), out
    assert re.search(r"^Total img/sec on 2 CPU\(s\): \d", out, re.MULTILINE) and out.count("Total") == 1
