"""``rueda.Checkpoint``: an own loop is saved by one writer and resumed on all workers, on any number of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import rueda
from harness import workers
from rueda.errors import CheckpointError, NonFiniteError, RunError
from rueda.optim import LAMB
from rueda.train.checkpoint import latest_checkpoint, list_checkpoints
from rueda.world import World, current
from tinytask import clouds, network, parameters


def loop(folder: Path | None, epochs: int, *, world: World, batch: int) -> nn.Module:
    """Train the tiny network as a user's script does, and return the model."""
    torch.manual_seed(0)
    loader = rueda.Loader(clouds(240, 1), batch=batch, world=world)
    plain = network()
    model = world.wrap(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if folder is None:
        left = iter(range(epochs))
    else:
        left = rueda.Checkpoint(folder, model=model, optimizer=optimizer, loader=loader).epochs(epochs)
    for _ in left:
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return plain


@workers(2)
def test_two_workers_continue_what_one_began(tmp_path: Path) -> None:
    """The same global batches on one worker, then on two, each with a disk of its own: the result of never stopping."""
    world = current()
    folder = tmp_path / f"disk{world.rank}"
    whole = loop(None, 4, world=world, batch=12)
    first = loop(folder, 2, world=world, batch=12)
    world.barrier()
    assert folder.exists() == world.is_main
    resumed = loop(folder, 4, world=world, batch=12)
    assert torch.equal(parameters(whole), parameters(resumed)) and not torch.equal(parameters(whole), parameters(first))
    if world.is_main:  # rank 0 alone may save, as in a script for Horovod
        file = rueda.Checkpoint(folder, model=resumed).save(7)
        assert file is not None and file.name.startswith("step-00000007.")
    again = network()
    assert rueda.Checkpoint(folder, model=again).resume() == 7
    assert torch.equal(parameters(again), parameters(resumed))


def test_one_worker_resumes_what_was_saved(tmp_path: Path) -> None:
    whole = loop(None, 3, world=World(), batch=24)
    loop(tmp_path, 1, world=World(), batch=24)
    resumed = loop(tmp_path, 3, world=World(), batch=24)
    assert torch.equal(parameters(whole), parameters(resumed))
    assert [int(file.name[5:13]) for file in list_checkpoints(tmp_path)] == [3, 2]


def test_mistakes(tmp_path: Path) -> None:
    model = network()
    mine = rueda.Checkpoint(tmp_path, model=model)
    assert mine.resume() == 0 and mine.save(1) is not None
    with pytest.raises(RunError, match="is being written by another process"):
        rueda.Checkpoint(tmp_path, model=model).save(2)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")  # type: ignore[index, operator, union-attr]
    with pytest.raises(
        NonFiniteError, match=r"nan or inf in 0\.weight, which is not saved: .*step-00000001\..* is whole"
    ):
        mine.save(2)
    found = latest_checkpoint(tmp_path)
    assert found is not None and found[1]["place"]["step"] == 1
    del mine  # and with it the lock
    with pytest.raises(CheckpointError, match=r"expected model, other, got model; pass the parts that were saved"):
        rueda.Checkpoint(tmp_path, model=model, other=model).resume()
    with pytest.raises(CheckpointError, match=r"does not fit model \(Error.*Missing key"):
        rueda.Checkpoint(tmp_path, model=nn.Linear(2, 2)).resume()
    with pytest.raises(CheckpointError, match="expected last, best or the step"):
        rueda.Checkpoint(tmp_path, model=model).resume(5)
    for parts in ({}, {"step": 3}, {"place": model}):
        with pytest.raises(CheckpointError, match="expected parts with state_dict"):
            rueda.Checkpoint(tmp_path, **parts)  # type: ignore[arg-type]


def test_the_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    """Adam's state in LAMB, or the other way round, would train with settings that nobody gave."""
    model = network()
    saved = torch.optim.Adam(model.parameters(), lr=0.1)
    assert rueda.Checkpoint(tmp_path, model=model, optimizer=saved).save(1) is not None
    for other in (torch.optim.SGD(model.parameters(), lr=0.5), LAMB(model.parameters(), lr=0.5)):
        with pytest.raises(
            CheckpointError, match=f"the optimizer that was saved, Adam, got '{type(other).__name__}'; pass"
        ):
            rueda.Checkpoint(tmp_path, model=model, optimizer=other).resume()
    assert rueda.Checkpoint(tmp_path, model=model, optimizer=torch.optim.Adam(model.parameters())).resume() == 1


@workers(2)
def test_a_script_for_horovod(tmp_path: Path) -> None:
    """Rank 0 alone saves, as such scripts do; all ranks resume, with the optimizer of Horovod."""
    import rueda.hvd.torch as hvd

    hvd.init()
    try:
        torch.manual_seed(hvd.rank())
        folder = tmp_path / f"disk{hvd.rank()}"
        model = network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named_parameters=model.named_parameters()
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        checkpoint = rueda.Checkpoint(folder, model=model, optimizer=optimizer)
        if hvd.rank() == 0:
            checkpoint.save(1)
        trained = parameters(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float(hvd.rank()))
        assert checkpoint.resume() == 1 and torch.equal(parameters(model), trained)
        one, other = current().all_gather(optimizer.state_dict()["state"][0]["momentum_buffer"])
        assert torch.equal(one, other)
    finally:
        hvd.shutdown()
