"""The batch scripts of `rueda run --slurm` on a real Slurm: requeued jobs go on, and a lost node does not end them.

`make test-slurm` runs them, where Slurm is installed (on Debian: apt-get install slurm-wlm munge iproute2).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from commandline import TASK
from elastic_loop import LOOP, said, trains
from rueda.world.launch.elastic_job.settings import ElasticSettings
from rueda.world.launch.hosts import Host
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.slurm import batch_script
from slurm_cluster import NODES, Slurm, output

SLOW = """
from dataclasses import replace
import time
from tinytask import network
def slow(**settings):
    model = network(**settings)
    model.register_forward_hook(lambda *_: time.sleep(0.05))
    return model
task = replace(task, model=slow)
"""


def elastic_job(folder: Path, **settings: Any) -> str:
    (folder / "loop.py").write_text(LOOP)
    plan = LaunchPlan(
        program=("loop.py",), hosts=(Host(name="localhost", slots=4),), grace=10,
        elastic=ElasticSettings(**{"least": 1, "most": 4, "timeout": 10.0, **settings}),
    )  # fmt: skip
    return batch_script(plan, nodes=2)


def newest(folder: Path) -> int:
    """Return the step of the newest checkpoint of the run `a`; 0 without one."""
    return max((int(file.name[5:].split(".")[0]) for file in folder.glob("a/**/step-*.pt")), default=0)


def other(node: str) -> str:
    return next(name for name in NODES if name != node)


def test_a_training_goes_on_after_the_notice_and_after_a_lost_node(slurm: Slurm, tmp_path: Path) -> None:
    """The job without elastic options: all workers end, Slurm starts the job again, and it resumes."""
    (tmp_path / "clouds.py").write_text(TASK.format(tests=str(Path(__file__).parents[2])) + SLOW)
    words = ["train", "clouds.py", "--epochs", "30", "--run", "a", "--resume", "--set", "checkpoint_every=2"]
    plan = LaunchPlan(program=("rueda", *words), module=True, hosts=(Host(name="localhost", slots=2),))
    number = slurm.submit(batch_script(plan, nodes=2), tmp_path)
    slurm.wait(lambda: newest(tmp_path), "a checkpoint", tmp_path)
    slurm.run("scancel", "--signal=USR2", number)  # as before the time limit
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "1", "the requeue", tmp_path)
    told = re.search(r"saved at step (\d+); go on with --resume", output(tmp_path))
    assert told is not None
    slurm.wait(lambda: newest(tmp_path) > int(told[1]), "a checkpoint of the second run", tmp_path)
    saved = newest(tmp_path)
    slurm.lose_node("nodeb")
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "2", "the requeue after the lost node", tmp_path)
    slurm.start_node("nodeb")
    slurm.wait(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the end", tmp_path, seconds=240)
    resumed = [int(step) for step in re.findall(r"resuming at epoch \d+, step (\d+)", output(tmp_path))]
    assert len(resumed) == 2 and resumed[0] == int(told[1]) and resumed[1] >= saved
    assert newest(tmp_path) == 30 * 240 // 48  # every update of 30 epochs, two workers with a batch of 24 each


def test_survivors_of_a_lost_node_go_on_and_the_requeued_job_has_all(slurm: Slurm, tmp_path: Path) -> None:
    slurm.wait(slurm.all_idle, "an idle cluster")
    number = slurm.submit(elastic_job(tmp_path), tmp_path)
    slurm.wait(lambda: trains(output(tmp_path), 4), "a world of four", tmp_path)
    pids = {line.pid for line in said(output(tmp_path)) if line.size == 4}
    lost = other(slurm.job(number)["BatchHost"])
    slurm.lose_node(lost)
    slurm.wait(lambda: trains(output(tmp_path), 2), "a world of two", tmp_path)
    assert {line.pid for line in said(output(tmp_path)) if line.size == 2} < pids  # they kept their processes
    assert slurm.job(number)["JobState"] == "RUNNING" and slurm.job(number)["Restarts"] == "0"
    slurm.start_node(lost)
    slurm.wait(slurm.none_down, "the node", tmp_path)
    slurm.run("scancel", "--signal=USR2", "--batch", number)  # as before the time limit
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "1", "the requeue", tmp_path)
    saved, before = int((tmp_path / "saved").read_text()), len(output(tmp_path))
    slurm.wait(lambda: trains(output(tmp_path)[before:], 4), "a world of four again", tmp_path)
    assert min(line.step for line in said(output(tmp_path)[before:])) >= saved > 0
    (tmp_path / "enough").touch()
    slurm.wait(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the end", tmp_path)


def test_too_few_workers_requeue_the_job(slurm: Slurm, tmp_path: Path) -> None:
    slurm.wait(slurm.all_idle, "an idle cluster")
    number = slurm.submit(elastic_job(tmp_path, least=3, wait=5.0), tmp_path)
    slurm.wait(lambda: trains(output(tmp_path), 4), "a world of four", tmp_path)
    lost = other(slurm.job(number)["BatchHost"])
    slurm.lose_node(lost)
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "1", "the requeue", tmp_path)
    before = len(output(tmp_path))
    slurm.start_node(lost)
    slurm.wait(lambda: trains(output(tmp_path)[before:], 4), "a world of four again", tmp_path)
    (tmp_path / "enough").touch()
    slurm.wait(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the end", tmp_path)


def test_a_job_that_loses_its_first_node_is_requeued(slurm: Slurm, tmp_path: Path) -> None:
    slurm.wait(slurm.all_idle, "an idle cluster")
    number = slurm.submit(elastic_job(tmp_path), tmp_path)
    slurm.wait(lambda: trains(output(tmp_path), 4), "a world of four", tmp_path)
    first = slurm.job(number)["BatchHost"]
    slurm.lose_node(first)
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "1", "the requeue", tmp_path)
    before = len(output(tmp_path))
    slurm.start_node(first)
    slurm.wait(lambda: trains(output(tmp_path)[before:], 4), "a world of four again", tmp_path)
    (tmp_path / "enough").touch()
    slurm.wait(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the end", tmp_path)
