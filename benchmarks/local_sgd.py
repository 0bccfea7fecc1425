"""Updates of two hosts on a slow link: gradients at each, or parameters now and then; and what the plan predicts.

=====================================  ==========================================================================
variant                                what crosses the link
=====================================  ==========================================================================
``every update``                       the gradients of each update (DistributedDataParallel, Gloo)
``sync_every = 8``, ``= 64``           the parameters, every 8 or 64 updates
``64, 8 fragments, delay 7``           the parameters in eighths, one every 8 updates, while 7 more are computed
``alone``                              nothing: each host trains by itself at the same time
=====================================  ==========================================================================

The hosts are network namespaces of this machine, on one bridge (:mod:`allreduce_hosts`), and their links are limited by
a token bucket filter (``tc ... tbf``), by default to 100 Mbit/s. It needs root on Linux, ``ip`` and ``tc``. The small
CNN on glyphs (0.1 million parameters) and an MLP of 4.2 million are trained at batch 64 a worker.

Blocks of updates run in turns within the same two processes; a block lasts until its exchanges are complete, so that
one of the last updates hides less than it would in a long training. The time of an update is the median over the
rounds, of the slower worker, as the ratio to ``every update`` of the same round is. Beside it stands the prediction of
``rueda.plan.predict`` and ``predict_exchange`` from ``alone`` and from all-reduces that were timed over the same link
in the same run.

    python benchmarks/local_sgd.py --rate 1gbit
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from _common import save
from allreduce_hosts import hosts

ALONE, EVERY = "alone", "every update"
VARIANTS: dict[str, dict[str, Any]] = {
    ALONE: {},
    EVERY: {},
    "sync_every = 8": {"sync_every": 8},
    "sync_every = 64": {"sync_every": 64},
    "64, 8 fragments, delay 7": {"sync_every": 64, "sync_fragments": 8, "sync_delay": 7},
}
FEWEST = 2
"""updates in a block of ``every update``; the others have one interval"""
SIZES = (4, 1 << 12, 1 << 16, 1 << 18, 1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit", help="speed of the links, as tc takes it")
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each variant, after one that does not count")
    parser.add_argument("--part", choices=["worker"], help="(of a worker)")
    arguments = parser.parse_args()
    if arguments.part:
        work(arguments)
        return
    found = on_hosts(arguments)
    for name, rows in found["tasks"].items():
        print(f"{name} over {arguments.rate}: ms an update, of every update, predicted ms, predicted / measured")
        for variant, row in rows.items():
            told = "" if row["predicted"] is None else f" {1e3 * row['predicted']:10.2f} {row['off']:8.2f}"
            print(f"  {variant:<26} {1e3 * row['seconds']:10.2f} {row['share']:8.3f}{told}")
    save("local_sgd", {"link": arguments.rate, "rounds": arguments.rounds, **found}, seeds=(0,))


def on_hosts(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start one worker on each of two hosts, and return what rank 0 has measured."""
    command = [sys.executable, __file__, "--part", "worker", "--rounds", str(arguments.rounds)]
    with hosts(2, arguments.rate) as names:
        processes = []
        for rank, host in enumerate(names):
            environ = {
                **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.78.0.2", "MASTER_PORT": "29500", "RUEDA_TRANSPORT": "gloo",
            }  # fmt: skip
            stdout = subprocess.DEVNULL if rank else subprocess.PIPE
            inside = ["ip", "netns", "exec", host, *command]
            processes.append(subprocess.Popen(inside, env=environ, text=True, stdout=stdout))
        answer = processes[0].communicate()[0]
        if sum(abs(process.wait()) for process in processes):
            sys.exit("a worker failed")
    found: dict[str, Any] = json.loads(answer.strip().splitlines()[-1])
    return found


def work(arguments: argparse.Namespace) -> None:
    """Time the variants of both tasks on this worker; rank 0 prints them with the predictions."""
    import torch

    import rueda
    from rueda.measure.communication import measure_communication

    torch.set_num_threads(1)
    world = rueda.init()
    link = measure_communication(world, sizes=SIZES, seconds=10.0)
    tasks = {
        task.name: measured(task, world, link, arguments.rounds) for task in (rueda.load_task("glyphs-cnn"), mlp())
    }
    if world.is_main:
        about = {"latency": link.latency, "bandwidth": link.bandwidth}
        print(json.dumps({"all_reduce": about, "tasks": tasks}))
    rueda.finish()


def mlp() -> Any:
    """Return the MLP of :mod:`plan` as a task."""
    import plan
    import rueda

    return rueda.Task(
        name="mlp", model=plan.mlp, train=plan.points, test=plan.points,
        recipe=rueda.Recipe(batch=plan.MLP_BATCH, rate=1e-3, epochs=100),
    )  # fmt: skip


def measured(task: Any, world: Any, link: Any, rounds: int) -> dict[str, dict[str, Any]]:
    """Return for each variant the seconds of an update, its share of every update's, and the prediction."""
    import torch

    from rueda.train.training import Training
    from rueda.world import World

    jobs = {
        name: Training(task, task.recipe.change(workers=1 if name == ALONE else 2, compare_every=0, **changes),
                       World() if name == ALONE else world)
        for name, changes in VARIANTS.items()
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            count = max(FEWEST, VARIANTS[name].get("sync_every", 1))
            world.barrier()
            began = time.perf_counter()
            for _ in range(count):
                job.step()
            if job.updater.exchange is not None:
                job.updater.exchange.wait()
            slowest = world.all_reduce(torch.tensor((time.perf_counter() - began) / count), "max").item()
            if number:
                seconds[name].append(slowest)
    predicted = predictions(task, jobs[ALONE], statistics.median(seconds[ALONE]), link)
    rows = {}
    for name, times in seconds.items():
        shares = [one / every for one, every in zip(times, seconds[EVERY], strict=True)]
        found = predicted.get(name)
        off = None if found is None else found / statistics.median(times)
        rows[name] = {
            "seconds": statistics.median(times), "share": statistics.median(shares), "predicted": found, "off": off,
            "all": times,
        }  # fmt: skip
    return rows


def predictions(task: Any, alone: Any, seconds: float, link: Any) -> dict[str, float]:
    """Return what the plan predicts for each variant, from an update alone and the measured all-reduces."""
    from rueda.plan import Cluster, predict, predict_exchange
    from rueda.plan.cluster import Link
    from rueda.records.profile import Profile, StepTime

    parameters = sum(one.numel() for one in alone.model.parameters())
    batch, thirds = task.recipe.batch, seconds / 3
    step = StepTime(
        batch=batch, seconds=seconds, spread=0.0, repeats=1, data=0.0, forward=thirds, backward=2 * thirds,
        optimizer=0.0,
    )  # fmt: skip
    profile = Profile(
        task=task.name, device="cpu", threads=1, precision="float32", parameters=parameters,
        gradient_bytes=4 * parameters, examples=alone.loader.num_examples, recipe=task.recipe.to_toml(), steps=(step,),
    )  # fmt: skip
    cluster = Cluster(
        name="two hosts", devices_per_node=1, max_nodes=2, library="gloo", jitter=0.0, speed=1.0, measured=(link,),
        between=Link(latency=link.latency / 2, bandwidth=link.bandwidth),
    )  # fmt: skip
    every = predict(profile, cluster, workers=2, local_batch=batch)
    found = {EVERY: every.step_seconds}
    for name, changes in VARIANTS.items():
        if changes:
            one = predict_exchange(
                profile, cluster, every, sync_every=changes["sync_every"],
                fragments=changes.get("sync_fragments", 1), delay=changes.get("sync_delay", 0),
            )  # fmt: skip
            found[name] = one.step_seconds
    return found


if __name__ == "__main__":
    main()
