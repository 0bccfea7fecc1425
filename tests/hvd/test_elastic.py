"""``horovod.torch.elastic``: what a commit keeps, which examples are left, and which errors are survived."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.bridge.gradients import GradientExchange
from rueda.hvd.common import elastic as common
from rueda.hvd.common import process_sets
from rueda.hvd.common.exceptions import MismatchError, StallError
from rueda.hvd.torch.elastic import sampler as samplers
from rueda.hvd.torch.elastic import state as states


class Ranks:
    """Samplers of some ranks in one process; it does by hand what the collectives of a state do."""

    def __init__(self, patch: pytest.MonkeyPatch, num_examples: int, **options: Any) -> None:
        self._patch = patch
        self.size = 0
        self._num_examples, self._options = num_examples, options
        self.samplers: list[Any] = []

    def each(self) -> Iterator[Any]:
        for rank, one in enumerate(self.samplers):
            self._patch.setattr(samplers, "rank", lambda rank=rank: rank)
            yield one

    def become(self, size: int) -> None:
        """Go on with so many ranks, all of which get the state of the first one."""
        told = self.samplers[0].state_dict() if self.samplers else None
        self._patch.setattr(samplers, "size", lambda: size)
        self.size, self.samplers = size, [None] * size
        for rank, _ in enumerate(self.each()):
            self.samplers[rank] = hvd.elastic.ElasticSampler(range(self._num_examples), **self._options)
            if told is not None:
                self.samplers[rank].load_state_dict(told)


@pytest.mark.parametrize("seed", range(20))
def test_each_example_counts_once_in_an_epoch_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    num_examples, batch_size = chance.randrange(1, 60), chance.randrange(1, 5)
    ranks = Ranks(monkeypatch, num_examples, shuffle=chance.random() < 0.7, seed=seed)
    ranks.become(chance.randrange(1, 5))
    for epoch in range(3):
        trained: list[int] = []  # of the model: what counts
        committed = list(trained)
        kept = [one.progress for one in ranks.each()]
        changes = chance.randrange(4)
        while True:
            batches = [
                [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
                for indices in (list(one) for one in ranks.each())
            ]
            assert len({len(found) for found in batches}) == 1  # else a rank would wait for the others
            ended = True
            for number, together in enumerate(zip(*batches, strict=True)):
                for indices, one in zip(together, ranks.each(), strict=True):
                    assert one.get_indices(number, batch_size) == indices
                    one.record_batch(number, batch_size)
                    trained += indices
                if chance.random() < 0.5:
                    committed, kept = list(trained), [one.progress for one in ranks.each()]
                if changes and chance.random() < 0.4:
                    changes, ended = changes - 1, False
                    if chance.random() < 0.5:  # a rank is lost: back to the last commit
                        trained = list(committed)
                        for one, progress in zip(ranks.each(), kept, strict=True):
                            one.restore(progress)
                    ranks.become(chance.randrange(1, 5))
                    committed, kept = list(trained), [one.progress for one in ranks.each()]
                    break
            if ended:
                break
        assert set(trained) == set(range(num_examples))
        assert len(trained) - num_examples < 4  # those that fill up the last batches, fewer than there were ranks
        assert all(one.processed_indices == set(range(num_examples)) for one in ranks.each())
        for one in ranks.each():
            one.set_epoch(epoch + 1)
            assert one.processed_num == 0 and one.epoch == epoch + 1


def test_the_order_is_that_of_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, 7, seed=3)
    ranks.become(2)
    for one in ranks.each():
        one.set_epoch(2)
    order = list(range(7))
    random.Random(3 + 2).shuffle(order)
    assert [list(one) for one in ranks.each()] == [order[0::2], [*order[1::2], order[0]]]
    told = {"epoch": 2, "processed_num": 4}  # the other form of Horovod's states
    for one in ranks.each():
        one.load_state_dict(told)
    assert [list(one) for one in ranks.each()] == [[order[4], order[6]], [order[5], order[4]]]
    assert ranks.samplers[0].state_dict() == {"epoch": 2, "processed_indices": sorted(order[:4])}


def test_fewer_examples_than_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, 1)
    ranks.become(3)
    assert [list(one) for one in ranks.each()] == [[0], [0], [0]]
    for one in ranks.each():
        one.record_batch(0, 4)
    ranks.become(2)
    assert [(list(one), len(one)) for one in ranks.each()] == [([], 0), ([], 0)]


def make_state() -> Any:
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1))
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    sampler = hvd.elastic.ElasticSampler(range(12), shuffle=False)
    return hvd.elastic.TorchState(model, optimizer, schedule=schedule, sampler=sampler, batch=hvd.rank(), seen=[])


def train(state: Any) -> None:
    state.optimizer.zero_grad()
    state.model(torch.arange(12.0).view(4, 3).sin()).square().sum().backward()
    state.optimizer.step()
    state.schedule.step()
    state.batch += 1
    state.seen.append(state.batch)


def snapshot(state: Any) -> list[Any]:
    tensors = [*state.model.state_dict().values()]
    for values in state.optimizer.state_dict()["state"].values():
        tensors += values.values()
    rates = [group["lr"] for group in state.optimizer.param_groups]
    values = [state.batch, list(state.seen), state.schedule.last_epoch, sorted(state.sampler.processed_indices)]
    return [[tensor.tolist() for tensor in tensors], rates, *values]


@workers(3)
def test_a_state_is_synchronised_committed_and_restored_twice() -> None:
    hvd.init()
    state = make_state()
    state.sync()
    train(state)
    state.sampler.record_batch(0, 2)
    state.commit()
    before = snapshot(state)
    assert before[-1] == [0, 1, 2, 3, 4, 5] and all(other == before for other in hvd.allgather_object(before))
    for _ in range(2):  # a second failure comes before the next commit
        train(state)
        state.sampler.record_batch(1, 2)
        assert snapshot(state) != before
        state.restore()
        assert snapshot(state) == before
    assert list(state.sampler) == [6 + hvd.rank(), 9 + hvd.rank()]
    # Of a fresh worker's state nothing is left, also if it has rank 0.
    if hvd.rank() == 0:
        state = make_state()
    state.root_rank = 1
    state.sync()
    assert snapshot(state) == hvd.broadcast_object(before, root_rank=1) and next(iter(state.sampler)) == 6 + hvd.rank()
    hvd.shutdown()


@workers(2)
def test_a_commit_covers_what_other_ranks_recorded_by_index() -> None:
    hvd.init()
    state = hvd.elastic.TorchState(sampler=hvd.elastic.ElasticSampler(range(6), shuffle=False))
    own = list(state.sampler)[:1]
    state.sampler.record_indices(own)
    assert state.sampler.processed_indices == set(own)
    state.commit()
    state.sampler.record_indices([4 + hvd.rank()])
    state.restore()
    assert state.sampler.processed_indices == {0, 1}
    state.sampler.record_indices([2 + hvd.rank()])
    state.sync()  # nothing has failed: what is not committed counts, too
    assert state.sampler.processed_indices == {0, 1, 2, 3} and list(state.sampler) == [4 + hvd.rank()]
    hvd.shutdown()


@workers(2)
def test_hosts_that_change_in_a_job_that_is_not_elastic() -> None:
    hvd.init()
    state = hvd.elastic.TorchState(sampler=hvd.elastic.ElasticSampler(range(8), shuffle=False), batch=0)
    seen: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> list[int]:
        for batch, index in enumerate(state.sampler):
            seen.append(index)
            state.sampler.record_batch(batch, 1)
            if len(seen) == 2:
                state.on_hosts_updated(0, 1)  # removed only: the state is not sent again
                state.check_host_updates()
        return seen

    assert train(state) == [hvd.rank() + 2 * number for number in range(4)]
    hvd.shutdown()


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (ValueError("of the script"), ValueError, "^of the script$"),
        (RuntimeError("gloo/ connection closed by peer"), RuntimeError, "^gloo"),  # of the script's own group
        (hvd.HorovodInternalError("rank 1 is gone"), hvd.HorovodInternalError, "rank 1 is gone; .* with --min-np"),
        (StallError("'x' waits"), StallError, "'x' waits; .* with --min-np"),
        (MismatchError("shapes"), MismatchError, "^elastic: shapes; the state is that of the last commit$"),
    ],
)
def test_errors_in_a_job_that_is_not_elastic(error: Exception, raised: type[Exception], message: str) -> None:
    state = common.ObjectState(lambda value, **_: value, lambda: 0, batch=0)

    @common.run
    def train(state: Any) -> None:
        state.batch = 7
        raise error

    with pytest.raises(raised, match=message):
        train(state)
    assert state.batch == (0 if isinstance(error, hvd.HorovodInternalError) else 7)


def test_handlers_of_the_users_own() -> None:
    class Meter:
        def __init__(self) -> None:
            self.total = 1

        def state_dict(self) -> dict[str, int]:
            return {"total": self.total}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.total = state["total"]

    before = states.get_handler_registry()
    states.set_handler_registry([*before, (Meter, states.StateHandler)])
    try:
        state: Any = hvd.elastic.TorchState(meter=Meter())
    finally:
        states.set_handler_registry(before)
    meter = state.meter
    meter.total = 5
    state.restore()
    assert state.meter is meter and meter.total == 1
    state.meter = Meter()
    state.meter.total = 9
    state.restore()
    assert state.meter is not meter and state.meter.total == 1


def test_a_worker_that_is_alone_exchanges_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of TensorFlow or JAX that was traced by one worker must reduce gradients once others have come."""
    hvd.init()
    exchange = GradientExchange("alone", predivide=2.0)
    assert exchange.alone
    monkeypatch.setattr(process_sets, "is_elastic", lambda: True)
    assert not exchange.alone
    gradient, values, indices = torch.tensor([3.0]), torch.ones(1, 2), torch.tensor([4])
    reduced = exchange([gradient, values, indices], num_sparse=1)
    assert [one.tolist() for one in reduced] == [[3.0], [[1.0, 1.0]], [4]]
    gradient.zero_()
    assert reduced[0].item() == 3.0  # a new tensor
