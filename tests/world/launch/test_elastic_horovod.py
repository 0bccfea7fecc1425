"""Elastic scripts for Horovod under `horovodrun`: killed workers, hosts that come, errors of the script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rueda.hvd.runner import run

EXAMPLE = Path(__file__).parents[3] / "examples" / "horovod" / "elastic.py"

# The parameter of an example is the number of times that it was trained on: the model itself counts. In generation 0
# one rank dies at some place, and later, when it has been replaced, another.
COUNT = """
import os, signal, sys, time
import torch
import horovod.torch as hvd

NUM, BATCH = 61, 2
deaths = {tuple(map(int, word.split(",")[:2])): (int(word.split(",")[2]), word.split(",")[3]) for word in sys.argv[1:]}

def die(place):
    rank, at = hvd.rank(), (int(os.environ["RUEDA_ELASTIC_GENERATION"]), hvd.rank())
    if at in deaths and state.step - state.entered >= deaths[at][0] and deaths[at][1] == place:
        os.kill(os.getpid(), signal.SIGKILL)

def say(what):
    print(f"{what} pid={os.getpid()} rank={hvd.rank()} size={hvd.size()} step={state.step}", flush=True)

hvd.init()
# Before elastic.run: a worker that joins gets what the first ones got, from whom it never heard.
first = hvd.broadcast(torch.tensor(os.getpid()), root_rank=0, name="first").item()
there, total = hvd.allgather_object(os.getpid()), hvd.allreduce(torch.tensor(hvd.rank() + 1.0), op=hvd.Sum).item()
hvd.barrier()
dataset = torch.utils.data.TensorDataset(torch.arange(NUM))
sampler = hvd.elastic.ElasticSampler(dataset, seed=7)
loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, sampler=sampler)
model = torch.nn.Embedding(NUM, 1)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)

@hvd.elastic.run
def train(state):
    state.entered = state.step
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()  # unnamed, as one before elastic.run
    say("entered")
    while sampler.processed_indices or not hvd.broadcast_object(os.path.exists("enough")):  # at the end of an epoch
        for batch, (indices,) in enumerate(loader):
            (-model(indices).sum()).backward()
            die("backward")
            optimizer.step()
            optimizer.zero_grad()
            sampler.record_batch(batch, BATCH)
            state.step += 1
            start, stop = (number * BATCH * hvd.size() for number in (batch, batch + 1))
            state.twice += max(0, min(stop, sampler.total_size) - max(start, len(sampler.remaining_indices)))
            time.sleep(0.01)
            die("step")
            if state.step % 3 == 0:
                state.commit()
                die("commit")
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        state.commit()

state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0, twice=0, entered=0)
train(state)
counts = model.weight.detach().flatten()
assert all(bool((other == counts).all()) for other in hvd.allgather_object(counts))
assert counts.min() >= state.epoch and counts.sum() == NUM * state.epoch + state.twice, (counts, state.twice)
told = {(first, tuple(there), total) for first, there, total in hvd.allgather_object((first, there, total))}
assert len(told) == 1 and first in there and len(there) == 3 and total == 6.0, told
say("ended")
"""
_LINE = re.compile(r"\[(\d)\]<stdout>:(\w+) pid=(\d+) rank=(\d+) size=(\d+) step=(\d+)")


def horovodrun(launcher: Any, *words: str) -> Any:
    return launcher.start(*words, command=[*launcher.rueda[:-1], "horovodrun"])


def pids(launch: Any, size: int) -> dict[int, int]:
    """Wait until so many workers have entered a world together, and return their processes by rank."""
    found: dict[int, int] = {}
    while len(found) < size:
        for line in launch.process.stdout:
            if (match := _LINE.match(line)) and match[2] == "entered":
                found = found if match[5] == str(size) else {}
                found[int(match[4])] = int(match[3])
                break
        else:
            raise AssertionError(launch.process.stderr.read())
    return dict(sorted(found.items()))


def test_survivors_go_on_and_no_example_is_lost_or_trained_twice(launcher: Any) -> None:
    deaths = ["0,0,7,backward", "2,1,4,commit"]  # rank 0, the root of the state; later the second of three
    words = ["-np", "3", "--min-np", "2", "--max-np", "3", "--reset-limit", "2"]
    launch = horovodrun(launcher, *words, launcher.script(COUNT), *deaths)
    first, second, third = pids(launch, 3).values()
    assert pids(launch, 2) == {0: second, 1: third}
    replaced = pids(launch, 3)
    assert (replaced[0], replaced[1]) == (second, third)
    assert pids(launch, 2) == {0: second, 1: replaced[2]}
    last = pids(launch, 3)
    (launcher.folder / "enough").touch()
    status, out, err = launch.end_quietly()
    assert status == 0, out + "\n".join(err)
    assert {int(pid) for _, what, pid, *_ in _LINE.findall(out) if what == "ended"} == set(last.values())
    assert first not in last.values() and launch.left() == []


def test_a_host_that_is_discovered_joins_and_the_rate_follows(launcher: Any) -> None:
    (launcher.folder / "hosts").write_text("localhost:1\n")
    script = launcher.folder / "discover.sh"
    script.write_text("#!/bin/sh\ncat hosts\n")
    script.chmod(0o755)
    words = ["--min-np", "1", "--max-np", "2", "--host-discovery-script", "./discover.sh", "--slots-per-host", "1"]
    launch = horovodrun(launcher, *words, str(EXAMPLE), "--until", "enough", "--examples", "512")
    alone = launch.wait_for_line("[0]<stdout>:1 workers, process")
    (launcher.folder / "hosts").write_text("localhost:2\n")
    together = launch.wait_for_line("[0]<stdout>:2 workers, process")
    assert re.findall(r"process (\d+)", alone)[0] in re.findall(r"process (\d+), rate 0.02", together)
    (launcher.folder / "enough").touch()
    status, out, err = launch.end_quietly()
    assert status == 0 and "the same on 2 workers" in out, out + "\n".join(err)
    said = [line for line in err if line.startswith("rueda: ")]  # nothing has failed
    assert len(said) == 1 and "generation 1: 2 workers" in said[0] and said[0].endswith("1 of them new"), said


def test_an_error_of_the_script_is_raised_as_it_is_and_counts(launcher: Any) -> None:
    code = """
import horovod.torch as hvd
hvd.init()
@hvd.elastic.run
def train(state):
    state.batch = 5
    if hvd.rank() == 1:
        raise ValueError("of the script")
    hvd.allreduce(__import__("torch").ones(1))
train(hvd.elastic.TorchState(batch=0))
"""
    words = ["-np", "2", "--min-np", "1", "--reset-limit", "0", launcher.script(code)]
    status, _, err = horovodrun(launcher, *words).end()
    assert status == 1 and "[1]<stderr>:ValueError: of the script" in err
    assert "rank 1 on localhost failed with exit status 1; 0 restarts (--restarts) are used up, so the job ends" in err


def test_a_call_before_run_that_the_others_never_made_ends_the_job_with_its_error(launcher: Any) -> None:
    code = """
import os, signal
import torch
import horovod.torch as hvd
hvd.init()
if os.environ["RUEDA_ELASTIC_GENERATION"] != "0":
    hvd.broadcast(torch.ones(1), root_rank=0, name="epoch")
@hvd.elastic.run
def train(state):
    while True:
        hvd.allreduce(torch.ones(1))
        state.batch += 1
        if state.batch == 3 and hvd.rank() == 1 and os.environ["RUEDA_ELASTIC_GENERATION"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        state.commit()
train(hvd.elastic.TorchState(batch=0))
"""
    words = ["-np", "2", "--min-np", "1", launcher.script(code)]
    status, _, err = horovodrun(launcher, *words).end()
    lines = err.splitlines()
    said = [line for line in lines if line.startswith("rueda: the same error for the second time")]
    assert status == 1 and len(said) == 1, err
    assert "broadcast 'epoch': expected no such call before hvd.elastic.run on a worker that joins" in said[0]
    assert sum("rank 1 on localhost failed with exit status 1; restart 2" in line for line in lines) == 1


def _survive() -> tuple[int, int, int]:
    import os
    import signal

    import torch

    import rueda.hvd.torch as hvd

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.batch < 6:
            hvd.allreduce(torch.ones(1))
            state.batch += 1
            state.commit()
            if state.batch == 3 and os.environ["RUEDA_ELASTIC_GENERATION"] == "0" and hvd.rank() == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    hvd.init()
    state = hvd.elastic.TorchState(batch=0)
    train(state)
    return hvd.rank(), hvd.size(), state.batch


def test_a_function_survives() -> None:
    pytest.importorskip("cloudpickle")
    assert run(_survive, np=2, min_np=1, max_np=2) in ([(0, 1, 6)], [(0, 2, 6), (1, 2, 6)])
