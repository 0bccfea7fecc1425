"""Collectives before ``elastic.run`` on a worker that joins: who answers them, and with what."""

from __future__ import annotations

import pytest
import torch

from rueda.hvd.core import entries as e
from rueda.hvd.core import prelude as preludes
from rueda.hvd.core.coordinator import Coordinator
from rueda.hvd.core.entries import Entry, Signature, signature_of
from rueda.hvd.core.messages import Define, Message, Refuse, Replay, Request, Run
from rueda.hvd.core.prelude import ENTRANCE, Kept, Prelude
from rueda.hvd.core.settings import Settings
from rueda.hvd.core.timeline import Timeline

EPOCH = signature_of(e.BROADCAST, [torch.tensor([7])])
ENTER = signature_of(e.ALLGATHER, [torch.tensor([7])])


def keeping(*values: torch.Tensor, name: str = "epoch") -> Prelude:
    """Return the prelude of a process that broadcast these, one after the other."""
    prelude = Prelude()
    for value in values:
        entry = Entry(0, name, signature_of(e.BROADCAST, [value]), [])
        entry.result = [value]
        prelude.keep(entry)
    prelude.is_over = True
    return prelude


def ask(name: str, signature: Signature = EPOCH) -> list[Message]:
    number = hash((name, signature))
    return [Define(number, tuple(signature)), Request(0, name, number, None, None)]


def answers(coordinator: Coordinator) -> list[tuple[list[int], Message]]:
    return [(list(ranks), message) for ranks, message in coordinator.respond()]


def joined(prelude: Prelude, size: int = 2) -> Coordinator:
    return Coordinator(size, Settings(), Timeline(), prelude)


def test_the_n_th_of_a_name_returns_what_the_n_th_returned_whoever_comes_first() -> None:
    coordinator = joined(keeping(torch.tensor([3]), torch.tensor([4])))
    coordinator.receive(1, ask("epoch"))
    assert answers(coordinator) == []  # the others may still call it in a reset callback
    coordinator.receive(0, ask(ENTRANCE, ENTER))
    coordinator.receive(1, [])
    ((ranks, first),) = answers(coordinator)
    coordinator.receive(1, ask("epoch"))
    ((_, second),) = answers(coordinator)
    assert ranks == [1] and isinstance(first, Replay) and isinstance(second, Replay)
    entries = [Entry(0, "epoch", EPOCH, []), Entry(0, "epoch", EPOCH, [], [torch.tensor([0])])]
    Kept(*first[3:]).give(entries[0])
    Kept(*second[3:]).give(entries[1])  # in place
    assert [entry.result[0].tolist() for entry in entries] == [[3], [4]]
    coordinator.receive(1, ask("epoch"))
    ((ranks, refused),) = answers(coordinator)
    assert ranks == [1] and isinstance(refused, Refuse) and not refused.mismatch
    assert "'epoch': expected no such call before hvd.elastic.run" in refused.text


def test_two_workers_that_join_are_answered_each_at_its_own_place() -> None:
    coordinator = joined(keeping(torch.tensor([3]), torch.tensor([4])), size=3)
    coordinator.receive(0, ask(ENTRANCE, ENTER))
    for rank, expected in ((1, 3), (2, 3), (2, 4), (1, 4)):
        coordinator.receive(rank, ask("epoch"))
        ((ranks, answer),) = answers(coordinator)
        assert ranks == [rank] and isinstance(answer, Replay)
        assert answer.contents == (torch.tensor([expected]).numpy().tobytes(),)


def test_what_the_others_also_call_in_a_reset_callback_is_run_by_all() -> None:
    coordinator = joined(keeping(torch.tensor([3])))
    coordinator.receive(1, ask("epoch"))
    coordinator.receive(0, ask("epoch"))
    ((ranks, run),) = answers(coordinator)
    assert ranks == [0, 1] and isinstance(run, Run) and run.names == ["epoch"]
    coordinator.receive(0, ask(ENTRANCE, ENTER))
    coordinator.receive(1, ask("epoch"))  # the second of the worker that joins: one is kept
    ((_, answer),) = answers(coordinator)
    assert isinstance(answer, Refuse)


def test_once_all_have_entered_collectives_wait_as_ever() -> None:
    coordinator = joined(keeping(torch.tensor([3])))
    for rank in (0, 1):
        coordinator.receive(rank, ask(ENTRANCE, ENTER))
    assert len(answers(coordinator)) == 1
    coordinator.receive(0, ask(ENTRANCE, ENTER))  # of a second elastic.run
    coordinator.receive(1, ask("epoch"))
    assert answers(coordinator) == []


@pytest.mark.parametrize(
    ("kind", "process_set", "kept"),
    [(e.ALLREDUCE, 0, True), (e.ALLGATHER, 0, True), (e.BARRIER, 0, True), (e.ALLTOALL, 0, False),
     (e.REDUCESCATTER, 0, False), (e.JOIN, e.JOIN_SET, False), (e.ALLREDUCE, 1, False)],
)  # fmt: skip
def test_only_what_is_the_same_on_all_ranks_is_kept(kind: int, process_set: int, kept: bool) -> None:
    value = torch.ones(2, dtype=torch.bfloat16)
    entry = Entry(process_set, "x", signature_of(kind, [value]), [])
    entry.result = [] if kind == e.BARRIER else [value]
    prelude = Prelude()
    prelude.keep(entry)
    found = prelude.find(entry.key, entry.signature, 0)
    assert (found is not None) == kept
    if found is not None:
        found.give(entry)
        assert len(entry.result) == (kind != e.BARRIER) and all(torch.equal(one, value) for one in entry.result)
        assert prelude.find(entry.key, entry.signature._replace(root=1), 0) is None  # another call of that name


def test_too_much_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preludes, "MOST_BYTES", 20)
    prelude = keeping(torch.tensor([1]), torch.tensor([2]), torch.tensor([3]), torch.tensor([4]))
    found = [prelude.find((0, e.BROADCAST, "epoch"), EPOCH, number) for number in range(4)]
    assert [one is not None for one in found] == [True, True, False, False]
