"""``rueda train --elastic``: workers come and are killed, and the training is the one that nothing disturbed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from commandline import rueda
from rueda.records import Recipe, Run
from rueda.records.run import Incident
from rueda.tasks import load_task
from rueda.train.checkpoint import latest_checkpoint
from rueda.train.training import Training
from rueda.world import World

# As the installed command does it: the working directory is not a place of modules.
TRAIN = [sys.executable, "-c", "import sys; sys.path.remove(''); from rueda.cli import main; main()", "train"]
# Each worker writes which examples it has trained on in which update, once its gradients are computed.
TASK = """
import json, os, time, torch, rueda

class Numbers:
    def __len__(self):
        return 240

    def __getitem__(self, index):
        return torch.randn(3, generator=torch.Generator().manual_seed(index)), torch.tensor(index)

def step(model, batch):
    inputs, numbers = batch
    if model.training:
        time.sleep(0.03)
        with open(f"trained-{os.getpid()}", "a") as stream:
            told = {name: int(os.environ.get(name, 0)) for name in ("RANK", "RUEDA_ELASTIC_GENERATION")}
            stream.write(json.dumps({**told, "numbers": numbers.tolist()}) + "\\n")
    if os.path.exists("fail"):
        raise ValueError("bad example")
    return (model(inputs)[:, 0] - inputs.sum(1) ** 2) ** 2

task = rueda.Task(
    name="numbers", step=step, train=Numbers, test=lambda: rueda.Arrays(torch.ones(4, 3), torch.arange(4)), metrics={},
    model=lambda: torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)),
    recipe=rueda.Recipe(batch=8, epochs=10_000, rate=0.02, precision="float64", checkpoint_every=20, commit_every=5),
)
"""


def wait_for(folder: Path, wanted: Callable[[Incident], bool], after: int = 0) -> tuple[int, Incident]:
    """Wait for an incident of the run, after so many others; return how many there are then, and the incident."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = Run(folder).incidents() if (folder / "metrics.jsonl").exists() else []
        for number, one in enumerate(found[after:], after + 1):
            if wanted(one):
                return number, one
        time.sleep(0.05)
    raise AssertionError("the incident never came")


def trained(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return what each process has trained on, in its order."""
    files = {int(file.name.partition("-")[2]): file for file in folder.glob("trained-*")}
    return {pid: [json.loads(line) for line in file.read_text().splitlines()] for pid, file in files.items()}


def newest_generation(folder: Path) -> tuple[int, dict[int, int]]:
    """Return the number of the last generation in which all workers have trained, and their processes by rank."""
    last = {pid: rows[-1] for pid, rows in trained(folder).items() if rows}
    newest = max(row["RUEDA_ELASTIC_GENERATION"] for row in last.values())
    return newest, {row["RANK"]: pid for pid, row in last.items() if row["RUEDA_ELASTIC_GENERATION"] == newest}


def reference(file: str, steps: int) -> tuple[torch.nn.Module, list[list[int]]]:
    """Make so many updates on one worker; return the model, and the examples of each update."""
    job = Training(load_task(file), load_task(file).recipe.change(workers=2), World())
    batches = []
    for _ in range(steps):
        before, epoch = job.loader.position, job.loader.epoch
        if job.step().epoch_ended:
            job.end_epoch()
        batches.append(sorted(job.loader._order_of(epoch)[before : before + 16].tolist()))
    return job.model, batches


def test_two_workers_become_three_and_one_is_killed(launcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No digit and no example differs from a training on one worker, but for those after the last commit."""
    folder = launcher.folder
    hosts, script = folder / "hosts", folder / "list hosts"
    hosts.write_text("localhost:2\n")
    script.write_text("#!/bin/sh\ncat hosts\n")
    script.chmod(0o755)
    launch = launcher.start(launcher.script(TASK, "counting.py"), "--elastic", "--workers", "2", "--run", "run",
                            "--max-np", "3", "--host-discovery-script", "list hosts", command=TRAIN,
                            OMP_NUM_THREADS="1")  # fmt: skip
    while not trained(folder):
        assert launch.process.poll() is None, launch.end()
        time.sleep(0.05)
    (folder / "new hosts").write_text("localhost:3\n")
    (folder / "new hosts").rename(hosts)  # a list that is half written would name no host
    num, grown = wait_for(folder / "run", lambda one: one.workers_after == 3)
    assert (grown.what, grown.workers_before, grown.examples_again) == ("workers-changed", 2, 0)
    generation, pids = newest_generation(folder)
    while len(pids) < 3:  # until all three have trained
        time.sleep(0.02)
        generation, pids = newest_generation(folder)
    os.kill(pids[0], signal.SIGKILL)
    num, lost = wait_for(folder / "run", lambda one: one.what == "workers-lost", num)
    assert (lost.ranks, lost.workers_before, lost.workers_after) == ((0,), 3, 2)
    assert lost.examples_again is not None and lost.examples_again % 16 == 0 and 0 <= lost.examples_again <= 5 * 16
    num, again = wait_for(folder / "run", lambda one: one.workers_after == 3, num)
    assert (again.workers_before, again.examples_again) == (2, 0)
    later, now = newest_generation(folder)
    while later < generation + 2 or len(now) < 3:
        time.sleep(0.02)
        later, now = newest_generation(folder)
    launch.process.send_signal(signal.SIGTERM)
    status, _, err = launch.end()
    assert status == 128 + signal.SIGTERM and "go on with --resume" in err, err
    assert launch.left() == []
    assert {pids[1], pids[2]} < set(now.values()) and pids[0] not in now.values()  # survivors keep their processes

    found = latest_checkpoint(folder / "run" / "checkpoints")
    assert found is not None
    steps = found[1]["place"]["step"]
    monkeypatch.chdir(folder)
    model, batches = reference("counting.py", steps)
    for name, parameter in model.state_dict().items():
        torch.testing.assert_close(found[1]["model"][name], parameter, rtol=0, atol=1e-10)
    assert found[1]["place"]["examples"] == 16 * steps
    # Each update of the last generation that made it: the examples of all its workers are those of one worker.
    restarts = {generation + 1: lost.step, generation + 2: again.step}
    rows = [row for pid, of_process in trained(folder).items() if pid != os.getpid() for row in of_process]
    for number, first in restarts.items():
        of_ranks = {
            rank: [row["numbers"] for row in rows if (row["RUEDA_ELASTIC_GENERATION"], row["RANK"]) == (number, rank)]
            for rank in range(3 if number == generation + 2 else 2)
        }
        passes = [sorted(chain.from_iterable(one)) for one in zip(*of_ranks.values(), strict=False)]
        # The first pass forms buckets for DistributedDataParallel, and is made again as an update.
        assert passes[1:] == batches[first : first + len(passes) - 1] and passes[0] == passes[1]


def test_a_mistake_in_a_worker_ends_the_job_in_one_line(launcher: Any) -> None:
    words = [launcher.script(TASK, "counting.py"), "--elastic", "--workers", "1", "--set", "batch=241"]
    status, out, err = launcher.run(*words, command=TRAIN)
    assert (status, out) == (2, ""), err
    expected = "at most the 240 examples that there are, got '241'; choose a smaller batch or fewer workers"
    assert err == f"rueda: batch: expected {expected}\n"


def test_the_same_error_at_the_same_update_ends_the_job(launcher: Any) -> None:
    (launcher.folder / "fail").touch()
    launch = launcher.start(
        launcher.script(TASK, "counting.py"), "--elastic", "--workers", "1", "--run", "run", command=TRAIN
    )
    status, _, err = launch.end()
    assert status == 1
    assert "rueda: the same error at step 0 for the second time, so the job ends: ValueError: bad example" in err
    assert err.count("restart 1") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--elastic", "--rehearse"], "--elastic has no effect on a rehearsal, which runs in one process"),
        (["--min-np", "1"], "--min-np is for an elastic job; add --elastic, or remove --min-np"),
        (["-H", "a:2"], "--hosts is for an elastic job; add --elastic"),
        (["--elastic", "--workers", "2", "--min-np", "3"], "-np: expected at least --min-np, 3, got 2"),
        (["--elastic", "--workers", "2", "--timeout", "0"], "--timeout: expected a positive number of seconds"),
        (["--elastic", "--host-discovery-script", "x"], "say for how many workers, with --workers"),
        (
            ["--elastic", "--set", "elastic_batch=half"],
            "elastic_batch: expected one of keep, scale, got 'half'",
        ),
        (["--elastic", "--run", "old"], "old holds a run already; continue it with resume=True (--resume)"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Run(tmp_path / "old").begin(Recipe(), "glyphs-cnn")
    (tmp_path / "old" / "metrics.jsonl").write_text("{}\n")
    assert rueda("train", "glyphs-cnn", *words) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
