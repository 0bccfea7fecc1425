"""Repeated all-reduces are negotiated by one bit, and whatever is not ordinary is treated as without numbers."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.common.exceptions import HorovodInternalError, MismatchError
from rueda.hvd.core import entries as e
from rueda.hvd.core import lifecycle
from rueda.hvd.core.coordinator import Coordinator
from rueda.hvd.core.entries import Signature, signature_of
from rueda.hvd.core.messages import Define, Leave, Message, Number, Refuse, Repeat, Request, Run, RunRepeated
from rueda.hvd.core.settings import Settings
from rueda.hvd.core.timeline import Timeline

LARGE = torch.ones(5000)


def full(name: str, tensor: torch.Tensor = LARGE, process_set: int = 0, number: int = 0) -> list[Message]:
    """Return the messages of a rank that requests an all-reduce by its name."""
    return [Define(number, signature_of(e.ALLREDUCE, [tensor])), Request(process_set, name, number, None, None)]


def numbered(size: int, *names: str, process_set: int = 0, **settings: Any) -> Coordinator:
    """Return a coordinator that has given numbers to all-reduces, in this order."""
    c = Coordinator(size, Settings(**settings), Timeline())
    if process_set:
        c.sets[process_set] = (0, 1)
    for turn in range(2):
        for rank in c.sets[process_set]:
            c.receive(rank, [message for name in names for message in full(name, process_set=process_set)])
        answers = [message for _, message in c.respond()]
        run, *rest = answers
        assert isinstance(run, Run) and run.names == list(names)
        rows = [(name, tuple(signature_of(e.ALLREDUCE, [LARGE]))) for name in names]
        assert rest == ([Number(process_set, 0, rows)] if turn else [])
    return c


def answers(c: Coordinator) -> list[Message]:
    return [message for _, message in c.respond()]


def test_what_all_ranks_repeat_runs_in_any_order_and_in_parts() -> None:
    c = numbered(3, "a", "b", "c")
    c.receive(0, [Repeat(0, 0b111)])
    c.receive(1, [Repeat(0, 0b100), Repeat(0, 0b001)])
    assert c.respond() == []
    c.receive(2, [Repeat(0, 0b110)])
    assert c.respond() == [((0, 1, 2), RunRepeated(0, 0b100))]
    c.receive(1, [Repeat(0, 0b110)])  # the next turn of c
    c.receive(2, [Repeat(0, 0b001)])
    assert answers(c) == [RunRepeated(0, 0b011)] and not c.pending


def test_a_rank_that_sends_names_is_matched_with_ranks_that_send_bits() -> None:
    """As one without a cache."""
    c = numbered(3, "a", "b")
    for first, second in ((0, 1), (1, 0)):
        c.receive(2, full("a"))
        c.receive(first, [Repeat(0, 0b11)])
        c.receive(second, [Repeat(0, 0b11)])
        (run,) = answers(c)
        assert isinstance(run, Run) and run.names == ["a"]
        c.receive(2, full("b"))
        (run,) = answers(c)
        assert isinstance(run, Run) and run.names == ["b"] and not c.pending
    for rank in range(3):
        c.receive(rank, [Repeat(0, 0b11)])
    assert answers(c) == [RunRepeated(0, 0b11)]


@pytest.mark.parametrize("first", ["bits", "name"])
def test_another_signature_by_the_same_name_is_a_mismatch(first: str) -> None:
    c = numbered(2, "a", "b")
    sent: list[tuple[int, list[Message]]] = [(0, [Repeat(0, 0b11)]), (1, [*full("a", torch.ones(7)), Repeat(0, 0b10)])]
    for rank, messages in sent if first == "bits" else reversed(sent):
        c.receive(rank, messages)
    found = answers(c)
    refusals = [answer for answer in found if isinstance(answer, Refuse)]
    assert len(found) == 2 and RunRepeated(0, 0b10) in found and len(refusals) == 1 and refusals[0].mismatch
    assert "shape [5000] on rank 0, shape [7] on rank 1" in refusals[0].text and not c.pending


def test_a_name_with_two_signatures_is_still_compared() -> None:
    c = numbered(2, "a")
    for turn in range(2):
        for rank in range(2):
            c.receive(rank, full("a", torch.ones(7)))
        assert [type(answer) for answer in answers(c)] == [Run, *[Number] * turn]
    c.receive(0, [Repeat(0, 0b01)])
    c.receive(1, [Repeat(0, 0b10)])
    (refusal,) = answers(c)
    assert isinstance(refusal, Refuse) and refusal.mismatch and "[5000] on rank 0, shape [7] on rank 1" in refusal.text
    for bits in (0b01, 0b10):
        for rank in range(2):
            c.receive(rank, [Repeat(0, bits)])
        (run,) = answers(c)
        assert isinstance(run, Run) and run.names == ["a"]


def join() -> list[Message]:
    return [Define(9, signature_of(e.JOIN)), Request(e.JOIN_SET, "join", 9, None, None)]


@pytest.mark.parametrize("order", ["join first", "bits first"])
def test_a_joined_rank_contributes_zeros(order: str) -> None:
    c = numbered(3, "a", "b")
    steps: list[tuple[int, list[Message]]] = [(2, join()), (0, [Repeat(0, 0b11)]), (1, [Repeat(0, 0b11)])]
    for rank, messages in steps if order == "join first" else reversed(steps):
        c.receive(rank, messages)
    if order == "join first":
        (run,) = answers(c)
        assert isinstance(run, Run) and run.names == ["a", "b"]
        assert {name: Signature._make(fields) for name, fields in run.absent.items()} == dict.fromkeys(
            "ab", signature_of(e.ALLREDUCE, [LARGE])
        )
    else:  # the rank that joined last had not sent its bits
        (run,) = answers(c)
        assert isinstance(run, Run) and set(run.absent) == {"a", "b"}
    c.receive(0, join())
    c.receive(1, join())
    assert [type(answer) for answer in answers(c)] == [Run]
    for rank in range(3):
        c.receive(rank, [Repeat(0, 0b11)])
    assert answers(c) == [RunRepeated(0, 0b11)]


def test_what_needs_a_rank_that_left_fails() -> None:
    for bits_first in (True, False):
        c = numbered(2, "a")
        messages: list[tuple[int, list[Message]]] = [(0, [Repeat(0, 1)]), (1, [Leave()])]
        for rank, sent in messages if bits_first else reversed(messages):
            c.receive(rank, sent)
        ((ranks, refusal),) = c.respond()
        assert list(ranks) == [0] and isinstance(refusal, Refuse)
        assert "'a' needs rank 1, which has shut down" in refusal.text


def test_what_waits_in_a_removed_process_set_fails() -> None:
    c = numbered(3, "a", process_set=1)
    c.receive(0, [Repeat(1, 1)])
    for rank in range(3):
        c.receive(rank, [Define(9, signature_of(e.REMOVE_SET, ranks=(0, 1))), Request(0, "remove", 9, None, None)])
    refusal, run = answers(c)
    assert isinstance(refusal, Refuse) and "it was removed" in refusal.text and isinstance(run, Run)
    c.receive(1, [Repeat(1, 1)])
    (refusal,) = answers(c)
    assert isinstance(refusal, Refuse) and "it was removed" in refusal.text and not c.pending


def test_a_stall_names_the_tensor_and_the_ranks(caplog: pytest.LogCaptureFixture) -> None:
    c = numbered(3, "a", "late", stall_seconds=1.0, stall_shutdown_seconds=100.0)
    for rank in (0, 2):
        c.receive(rank, [Repeat(0, 0b11)])
    c.receive(1, [Repeat(0, 0b01)])
    assert answers(c) == [RunRepeated(0, 0b01)] and c.check_stalls() is None and not c.pending
    table = c._repetitions[0]
    table._since = [(since - 50, bits) for since, bits in table._since]
    assert c.check_stalls() is None
    assert "allreduce 'late' was submitted by ranks [0, 2] 50 s ago and not by ranks [1]" in caplog.text
    c.receive(1, [Repeat(0, 0b10)])  # it comes after all
    (run,) = answers(c)
    assert isinstance(run, Run) and run.names == ["late"] and not c.pending
    for rank in range(3):
        c.receive(rank, [Repeat(0, 0b11)])
    assert answers(c) == [RunRepeated(0, 0b11)]


def test_names_that_are_used_once_take_no_numbers() -> None:
    c = Coordinator(2, Settings(cache_capacity=4), Timeline())
    for turn in range(200):
        for rank in range(2):
            c.receive(rank, full(f"allreduce.noname.{turn}"))
        assert [type(answer) for answer in answers(c)] == [Run]
    assert len(c._seen) <= 32
    for turn in range(3):
        for rank in range(2):
            c.receive(rank, [message for name in "abcdef" for message in full(name)])
        found = answers(c)
        assert sum(len(answer.rows) for answer in found if isinstance(answer, Number)) == (4 if turn == 1 else 0)


def values(step: int, number: int, rank: int, length: int) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float32) % 7 + step + 10 * number + 100 * rank


def steps_of(num_steps: int, shapes: list[tuple[int, ...]], process_set: Any, ranks: list[int]) -> list[int]:
    """Reduce tensors step after step in random orders; return how many bits this rank has sent in each step."""
    choose = random.Random(hvd.rank())
    queue = lifecycle.engine().tensor_queue
    bits = []
    for step in range(num_steps):
        tensors = [values(step, n, hvd.rank(), torch.Size(shape).numel()).view(shape) for n, shape in enumerate(shapes)]
        order = list(range(len(shapes)))
        choose.shuffle(order)
        handles = {}
        taken = 0
        for n in order:
            in_place, op = n % 2 == 0, (hvd.Sum, hvd.Average, hvd.Max)[n % 3]
            start = hvd.allreduce_async_ if in_place else hvd.allreduce_async
            before = dict(queue.repeated)
            handles[n] = start(tensors[n], name=f"repeated{n}", op=op, process_set=process_set)
            taken += bool(queue.repeated) and queue.repeated != before
        choose.shuffle(order)
        for n in order:
            found = hvd.synchronize(handles[n])
            parts = torch.stack([values(step, n, rank, found.numel()).view(found.shape) for rank in ranks])
            expected = (parts.sum(0), parts.mean(0), parts.amax(0))[n % 3]
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
            if n % 2:
                assert torch.equal(tensors[n], values(step, n, hvd.rank(), found.numel()).view(found.shape))
            else:
                assert found.data_ptr() == tensors[n].data_ptr()
        bits.append(taken)
    return bits


SHAPES = [(2000,), (3, 700), (1500,), (2, 3, 400), (1_200_000,), (900,), (30, 40), (5000,)]


@workers(2)
def test_two_workers_repeat() -> None:
    hvd.init()
    bits = steps_of(6, SHAPES, hvd.global_process_set, [0, 1])
    # The background thread may have sent some before they were counted.
    assert bits[:2] == [0, 0] and max(bits[2:]) >= 1


@workers(3)
def test_three_workers_repeat() -> None:
    hvd.init()
    assert steps_of(6, SHAPES, hvd.global_process_set, [0, 1, 2])[:2] == [0, 0]


@workers(3)
def test_process_sets_repeat_and_a_name_survives_the_removal_of_its_set() -> None:
    hvd.init()
    for _ in range(2):
        some = hvd.add_process_set([0, 2])
        if some.included():
            steps_of(4, SHAPES[:3], some, [0, 2])
        hvd.remove_process_set(some)
        if hvd.rank() != 1:
            with pytest.raises(ValueError, match="expected a registered set"):
                hvd.allreduce_async_(torch.ones(2000), name="repeated0", op=hvd.Sum, process_set=some)
    steps_of(4, SHAPES[:3], hvd.global_process_set, [0, 1, 2])


@workers(2)
def test_a_repetition_that_changes_is_an_error_on_both_ranks_and_the_next_one_runs() -> None:
    hvd.init()
    for _ in range(4):
        assert hvd.synchronize(hvd.allreduce_async_(torch.ones(3000), name="changes", op=hvd.Sum))[0] == 2
    with pytest.raises(MismatchError, match=r"shape \[3000\] on rank 0, shape \[3001\] on rank 1"):
        hvd.synchronize(hvd.allreduce_async_(torch.ones(3000 + hvd.rank()), name="changes", op=hvd.Sum))
    with pytest.raises(MismatchError, match="operation Sum on rank 0, operation Max on rank 1"):
        hvd.synchronize(hvd.allreduce_async_(torch.ones(3000), name="changes", op=(hvd.Sum, hvd.Max)[hvd.rank()]))
    handle = hvd.allreduce_async_(torch.ones(3000), name="changes", op=hvd.Sum)
    with pytest.raises(ValueError, match="'changes': expected a name that is not in flight"):
        for _ in range(100):  # unless the first has run meanwhile
            hvd.allreduce_async_(torch.ones(3000), name="changes", op=hvd.Sum)
    assert hvd.synchronize(handle)[0] == 2
    hvd.shutdown()
    hvd.init()


@workers(2)
def test_repetitions_run_in_the_background() -> None:
    hvd.init()
    for _ in range(3):
        hvd.synchronize(hvd.allreduce_async_(torch.ones(3000), name="background", op=hvd.Sum))
    tensor = torch.ones(3000)
    handle = hvd.allreduce_async_(tensor, name="background", op=hvd.Sum)
    deadline = time.monotonic() + 60
    while tensor[0] != 2 and time.monotonic() < deadline:
        time.sleep(0.01)  # nobody waits for it
    assert tensor[0] == 2
    hvd.synchronize(handle)


@workers(2)
def test_a_timeline_shows_repetitions(tmp_path: Path) -> None:
    hvd.init()
    for step in range(5):
        if step == 3:
            hvd.start_timeline(str(tmp_path / "timeline.json"))
            hvd.barrier()
        handles = [hvd.allreduce_async_(torch.ones(3000), name=f"traced{n}", op=hvd.Sum) for n in range(2)]
        assert [hvd.synchronize(handle)[0].item() for handle in handles] == [2.0, 2.0]
    hvd.stop_timeline()
    hvd.barrier()
    if hvd.rank() == 0:
        events = json.loads((tmp_path / "timeline.json").read_text())
        rows = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
        own = [event for event in events if rows[event["pid"]] == "traced1"]
        begun = {event["name"] for event in own if event["ph"] == "B"}
        assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "GROUP_ALLREDUCE"} <= begun
        assert [event["ph"] for event in own].count("B") == [event["ph"] for event in own].count("E")
        assert {event["name"] for event in own if event["ph"] == "i"} == {"0", "1"}


@workers(3)
def test_repetitions_while_ranks_join() -> None:
    hvd.init()
    for step in range(4 + hvd.rank()):
        expected = 3.0 if step < 4 else 6.0 - step  # rank 0 joins after 4 steps, rank 1 after 5
        found = hvd.synchronize(hvd.allreduce_async_(torch.ones(3000), name="until joined", op=hvd.Sum))
        assert found[0].item() == expected
    hvd.join()
    assert steps_of(3, SHAPES[:3], hvd.global_process_set, [0, 1, 2])


@workers(2)
def test_a_failure_names_the_repetitions() -> None:
    hvd.shutdown()
    hvd.init()
    for _ in range(3):
        hvd.synchronize(hvd.allreduce_async_(torch.ones(30_000), name="fails", op=hvd.Sum))
    hvd.barrier()
    if hvd.rank() == 1:

        def broken(*_: Any) -> None:
            raise MemoryError("no memory")

        lifecycle.engine().executor._reduce_in_group = broken  # type: ignore[method-assign]
    with pytest.raises(HorovodInternalError, match=r"allreduce \['fails'\]: no memory"):
        hvd.synchronize(hvd.allreduce_async_(torch.ones(30_000), name="fails", op=hvd.Sum))
    hvd.shutdown()
    hvd.init()
