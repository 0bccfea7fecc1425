"""The ledger: what is told to rank 0, and how what is open ends."""

from __future__ import annotations

import pytest
import torch

from rueda.hvd.common.exceptions import HorovodInternalError, MismatchError, StallError
from rueda.hvd.core.entries import ALLREDUCE, BARRIER, Entry, sign
from rueda.hvd.core.ledger import Ledger
from rueda.hvd.core.messages import Define, Request


def entry(name: str, *shape: int) -> Entry:
    tensor = torch.zeros(shape)
    return Entry(0, name, sign(ALLREDUCE, [tensor]), [tensor])


def test_a_signature_is_spelled_out_once_and_only_as_many_as_fit() -> None:
    ledger = Ledger(cache_capacity=1)
    first, second, other = entry("a", 2), entry("b", 2), entry("c", 3)
    assert [ledger.add(each) for each in (first, second, other)] == [True, False, False]
    assert ledger.take_outbox() == [
        Define(0, first.signature),
        Request(0, "a", 0, None, None),
        Request(0, "b", 0, None, None),
        Define(1, other.signature),
        Request(0, "c", 1, None, None),
    ]
    ledger.add(entry("e", 4))  # takes the number that is beyond the cache, again
    assert ledger.take_outbox() == [Define(1, sign(ALLREDUCE, [torch.zeros(4)])), Request(0, "e", 1, None, None)]
    assert second.signature is first.signature  # so that they can be compared at a glance
    assert ledger.outbox == [] and ledger.add(entry("d", 2))


def test_names_begin_anew_after_a_join() -> None:
    ledger = Ledger(cache_capacity=8)
    names = [ledger.name(0, ALLREDUCE), ledger.name(1, ALLREDUCE)]
    ledger.count_anew()
    names += [ledger.name(0, ALLREDUCE), ledger.name(0, BARRIER)]
    assert names == ["allreduce.noname.1", "allreduce.noname.1", "allreduce.noname.1.1", "barrier.noname.1.1"]


def test_one_is_refused_and_may_be_tried_again() -> None:
    ledger = Ledger(cache_capacity=8)
    bad, good = entry("a", 2), entry("b", 2)
    ledger.add(bad)
    ledger.add(good)
    with pytest.raises(ValueError, match="'a': expected a name that is not in flight"):
        ledger.add(entry("a", 2))
    ledger.refuse(0, "a", MismatchError("no"))
    assert bad.done and isinstance(bad.error, MismatchError) and not good.done
    ledger.refuse(0, "a", MismatchError("again"))  # which is not there
    ledger.add(entry("a", 2))


def test_a_join_ends_by_result_or_refusal() -> None:
    ledger = Ledger(cache_capacity=8)
    joins = [Entry(0, "join", sign(BARRIER), []) for _ in range(2)]
    ledger.add_join(joins[0])
    ledger.end_join(3)
    ledger.add_join(joins[1])
    ledger.refuse(0, "", HorovodInternalError("rank 2 has shut down"))
    ledger.end_join(1)  # nobody joins any more
    assert joins[0].result == 3 and joins[0].error is None
    assert joins[1].result is None and str(joins[1].error) == "rank 2 has shut down"


def test_the_first_failure_ends_all_that_is_open_and_all_that_comes() -> None:
    ledger = Ledger(cache_capacity=8)
    open_ones = [entry("a", 2), Entry(0, "join", sign(BARRIER), [])]
    ledger.add(open_ones[0])
    ledger.add_join(open_ones[1])
    assert ledger.fail(StallError("late")) and not ledger.fail(HorovodInternalError("later"))
    for each in open_ones:
        assert each.done and isinstance(each.error, StallError) and str(each.error) == "late"
    assert open_ones[0].error is not open_ones[1].error  # each is raised in a place of its own
    assert not ledger.entries
    for late in (lambda: ledger.add(entry("b", 2)), lambda: ledger.add_join(open_ones[1])):
        with pytest.raises(StallError, match="late"):
            late()
