"""The tensor queue: the messages to the coordinator, and how open entries end."""

from __future__ import annotations

import pytest
import torch

from rueda.hvd.common.exceptions import HorovodInternalError, MismatchError, StallError
from rueda.hvd.core.entries import ALLREDUCE, BARRIER, Entry, signature_of
from rueda.hvd.core.messages import Define, Request
from rueda.hvd.core.tensor_queue import TensorQueue


def entry(name: str, *shape: int) -> Entry:
    tensor = torch.zeros(shape)
    return Entry(0, name, signature_of(ALLREDUCE, [tensor]), [tensor])


def test_a_cached_signature_is_defined_once() -> None:
    queue = TensorQueue(cache_capacity=1)
    first, second, other = entry("a", 2), entry("b", 2), entry("c", 3)
    assert [queue.add(each) for each in (first, second, other)] == [True, False, False]
    assert queue.take_outbox() == [
        Define(0, first.signature),
        Request(0, "a", 0, None, None),
        Request(0, "b", 0, None, None),
        Define(1, other.signature),
        Request(0, "c", 1, None, None),
    ]
    queue.add(entry("e", 4))  # reuses the number beyond the cache
    assert queue.take_outbox() == [
        Define(1, signature_of(ALLREDUCE, [torch.zeros(4)])),
        Request(0, "e", 1, None, None),
    ]
    assert second.signature is first.signature  # fast to compare
    assert queue.outbox == [] and queue.add(entry("d", 2))


def test_default_names_restart_after_a_join() -> None:
    queue = TensorQueue(cache_capacity=8)
    names = [queue.default_name(0, ALLREDUCE), queue.default_name(1, ALLREDUCE)]
    queue.reset_default_names()
    names += [queue.default_name(0, ALLREDUCE), queue.default_name(0, BARRIER)]
    assert names == ["allreduce.noname.1", "allreduce.noname.1", "allreduce.noname.1.1", "barrier.noname.1.1"]


def test_a_failed_entry_may_be_submitted_again() -> None:
    queue = TensorQueue(cache_capacity=8)
    bad, good = entry("a", 2), entry("b", 2)
    queue.add(bad)
    queue.add(good)
    with pytest.raises(ValueError, match="'a': expected a name that is not in flight"):
        queue.add(entry("a", 2))
    queue.fail_entry((0, ALLREDUCE, "a"), MismatchError("no"))
    assert bad.done and isinstance(bad.error, MismatchError) and not good.done
    queue.fail_entry((0, ALLREDUCE, "a"), MismatchError("again"))  # not open any more
    queue.add(entry("a", 2))


def test_a_failure_ends_open_entries_and_refuses_new_ones() -> None:
    queue = TensorQueue(cache_capacity=8)
    open_ones = [entry("a", 2), Entry(0, "b", signature_of(BARRIER), [])]
    for each in open_ones:
        queue.add(each)
    assert queue.fail(StallError("late")) and not queue.fail(HorovodInternalError("later"))
    for each in open_ones:
        assert each.done and isinstance(each.error, StallError) and str(each.error) == "late"
    assert open_ones[0].error is not open_ones[1].error  # each thread raises its own
    assert not queue.entries
    with pytest.raises(StallError, match="late"):
        queue.add(entry("c", 2))
