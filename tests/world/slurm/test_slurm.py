"""The batch scripts of `rueda run --slurm` on a real Slurm: requeued jobs go on, and a lost node does not end them.

These tests are skipped where Slurm is not installed; `make test-slurm` runs them. They take about two minutes.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from commandline import TASK
from rueda.world.launch.elastic_job.settings import ElasticSettings
from rueda.world.launch.hosts import Host
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.slurm import batch_script

# Goes on from the file `saved`, with the workers that there are, until the file `enough` is there.
LOOP = """
import os, signal, time, torch, rueda
from rueda.world import elastic

def say(what):
    print(f"{what} pid={os.getpid()} rank={world.rank} size={world.size} step={step}", flush=True)

def share():
    with elastic.guard():
        return int(world.broadcast(torch.tensor(step)))

def save(*_):
    if world.rank == 0:
        with open("saved.new", "w") as file:
            file.write(str(step))
        os.replace("saved.new", "saved")

notices = []
signal.signal(signal.SIGUSR2, lambda *_: notices.append(1))
elastic.register()
step = int(open("saved").read()) if os.path.exists("saved") else 0
world = rueda.init()
say("began")
if elastic.generation():
    step = share()
while True:
    try:
        with elastic.guard():
            world.all_reduce(torch.ones(3))
            step += 1
            if step % 10 == 0:
                say("trained")
            time.sleep(0.02)
            asked = torch.tensor([elastic.updates(), os.path.exists("enough"), len(notices) > 0])
            updates, enough, notice = world.all_reduce(asked, "max").tolist()
            if notice:
                save()
                say("saved")
                raise SystemExit(75)
            if enough:
                break
            if updates:
                world = elastic.reform(failed=False, step=step)
                say("changed")
                step = share()
    except elastic.PeerLost:
        world = elastic.reform(failed=True, step=step)
        say("recovered")
        step = share()
say("ended")
"""
_LINE = re.compile(r"(\w+) pid=(\d+) rank=(\d+) size=(\d+) step=(\d+)")


def lines(folder: Path) -> list[tuple[str, int, int, int, int]]:
    """What the workers said: word, process id, rank, size, step."""
    text = (folder / "out").read_text() if (folder / "out").exists() else ""
    return [(found[1], *(int(found[n]) for n in range(2, 6))) for found in _LINE.finditer(text)]  # type: ignore[misc]


def trains(folder: Path, size: int, after: int = 0) -> bool:
    return any(line[0] == "trained" and line[3] == size for line in lines(folder)[after:])


def elastic_job(folder: Path, **settings: Any) -> str:
    (folder / "loop.py").write_text(LOOP)
    plan = LaunchPlan(
        program=("loop.py",), hosts=(Host(name="localhost", slots=4),), grace=10,
        elastic=ElasticSettings(**{"least": 1, "most": 4, "timeout": 10.0, **settings}),
    )  # fmt: skip
    return batch_script(plan, nodes=2)


def test_a_training_goes_on_after_the_notice_and_after_a_lost_node(slurm: Any, tmp_path: Path) -> None:
    """The job without elastic options: all workers end, Slurm starts the job again, and it resumes."""
    slow = "from dataclasses import replace\nimport time\nfrom tinytask import network\n" \
           "def slow(**s):\n    m = network(**s)\n    m.register_forward_hook(lambda *_: time.sleep(0.05))\n    return m\n" \
           "task = replace(task, model=slow)\n"  # fmt: skip
    tests = Path(__file__).parents[2]
    (tmp_path / "clouds.py").write_text(TASK.format(tests=str(tests)) + slow)
    words = "train clouds.py --epochs 30 --run a --resume --set checkpoint_every=2".split()
    plan = LaunchPlan(program=("rueda", *words), module=True, hosts=(Host(name="localhost", slots=2),))
    number = slurm.submit(batch_script(plan, nodes=2), tmp_path)
    slurm.wait(lambda: list(tmp_path.glob("a/**/step-*.pt")), "a checkpoint", tmp_path)
    slurm.run("scancel", "--signal=USR2", number)  # as before the time limit
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "1", "the requeue", tmp_path)
    told = re.search(r"saved at step (\d+); go on with --resume", (tmp_path / "out").read_text())
    assert told is not None
    before = len(list(tmp_path.glob("a/**/step-*.pt")))
    slurm.wait(lambda: slurm.job(number)["JobState"] == "RUNNING", "the second run", tmp_path)
    slurm.wait(lambda: newest(tmp_path) > int(told[1]), "a checkpoint of the second run", tmp_path)
    assert before
    saved = newest(tmp_path)
    slurm.lose_node("nodeb")
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "2", "the requeue after the lost node", tmp_path)
    slurm.start_node("nodeb")
    slurm.wait(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the end", tmp_path, seconds=240)
    assert newest(tmp_path) > saved
    resumed = [int(step) for step in re.findall(r"resum\w* .*?step (\d+)", (tmp_path / "out").read_text())]
    print((tmp_path / "out").read_text(), resumed)


def newest(folder: Path) -> int:
    return max((int(file.name[5:].split(".")[0]) for file in folder.glob("a/**/step-*.pt")), default=0)


def test_survivors_of_a_lost_node_go_on_and_the_requeued_job_has_all(slurm: Any, tmp_path: Path) -> None:
    slurm.wait(slurm.all_idle, "an idle cluster")
    number = slurm.submit(elastic_job(tmp_path), tmp_path)
    slurm.wait(lambda: trains(tmp_path, 4), "a world of four", tmp_path)
    pids = {line[1] for line in lines(tmp_path) if line[3] == 4}
    first = slurm.job(number)["BatchHost"]
    begun = time.monotonic()
    slurm.lose_node("nodeb" if first == "nodea" else "nodea")
    slurm.wait(lambda: trains(tmp_path, 2), "a world of two", tmp_path)
    print("seconds until survivors train", time.monotonic() - begun)
    assert {line[1] for line in lines(tmp_path) if line[3] == 2} < pids  # the same processes
    assert slurm.job(number)["JobState"] == "RUNNING" and slurm.job(number)["Restarts"] == "0"
    slurm.start_node("nodeb" if first == "nodea" else "nodea")
    slurm.wait(lambda: "DOWN" not in slurm.run("sinfo", "--noheader", "--Node", "--format=%T").upper(), "the node")
    slurm.run("scancel", "--signal=USR2", "--batch", number)
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "1", "the requeue", tmp_path)
    saved, said = int((tmp_path / "saved").read_text()), len(lines(tmp_path))
    slurm.wait(lambda: trains(tmp_path, 4, said), "a world of four again", tmp_path)
    assert min(line[4] for line in lines(tmp_path)[said:]) >= saved > 0
    (tmp_path / "enough").touch()
    slurm.wait(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the end", tmp_path)
    print((tmp_path / "out").read_text())


def test_too_few_workers_requeue_the_job(slurm: Any, tmp_path: Path) -> None:
    slurm.wait(slurm.all_idle, "an idle cluster")
    number = slurm.submit(elastic_job(tmp_path, least=3, wait=5.0), tmp_path)
    slurm.wait(lambda: trains(tmp_path, 4), "a world of four", tmp_path)
    first = slurm.job(number)["BatchHost"]
    slurm.lose_node("nodeb" if first == "nodea" else "nodea")
    slurm.wait(lambda: slurm.job(number)["Restarts"] == "1", "the requeue", tmp_path)
    slurm.start_node("nodeb" if first == "nodea" else "nodea")
    said = len(lines(tmp_path))
    slurm.wait(lambda: trains(tmp_path, 4, said), "a world of four again", tmp_path)
    (tmp_path / "enough").touch()
    slurm.wait(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the end", tmp_path)
    print((tmp_path / "out").read_text())
