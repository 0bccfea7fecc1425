"""The core without a network: signatures, messages, the coordinator's decisions, reductions of every type."""

from __future__ import annotations

import socket
from itertools import count
from typing import Any, get_args

import numpy as np
import pytest
import torch

from rueda.hvd.core import entries as e
from rueda.hvd.core import reduce
from rueda.hvd.core.coordinator import Coordinator, Response
from rueda.hvd.core.entries import describe_mismatch, from_bytes, raw_bytes, sign
from rueda.hvd.core.known_order import BUCKET_BYTES, make_layout
from rueda.hvd.core.messages import (
    Abort,
    AllLeft,
    Define,
    Join,
    Joined,
    Leave,
    Message,
    Refuse,
    Request,
    Run,
    Withdraw,
    decode,
    encode,
)  # fmt: skip
from rueda.hvd.core.settings import Settings, read_settings
from rueda.hvd.core.star import Channel, pack
from rueda.hvd.core.timeline import Timeline

ONES = torch.ones(2, 3)

MISMATCHES: dict[str, tuple[Any, str]] = {
    "shape": (sign(e.ALLREDUCE, [torch.ones(2, 4)]), "shape [2, 3] on ranks 0, 2, shape [2, 4] on rank 1"),
    "type": (sign(e.ALLREDUCE, [ONES.double()]), "type float32 on ranks 0, 2, type float64 on rank 1"),
    "operation": (sign(e.ALLREDUCE, [ONES], operation=e.MAX), "operation Sum on ranks 0, 2, operation Max on rank 1"),
    "collective": (sign(e.BROADCAST, [ONES]), "collective allreduce on ranks 0, 2, collective broadcast on rank 1"),
    "factor": (sign(e.ALLREDUCE, [ONES], prescale=0.5), "factor 1.0 on ranks 0, 2, prescale factor 0.5 on rank 1"),
    "group": (sign(e.ALLREDUCE, [ONES, ONES]), "number of tensors 1 on ranks 0, 2, number of tensors 2 on rank 1"),
    "device": (sign(e.ALLREDUCE, [ONES])._replace(device="cuda"), "cpu on ranks 0, 2, device cuda on rank 1"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISMATCHES)
def test_a_mismatch_names_tensor_ranks_and_difference(what: str) -> None:
    other, expected = MISMATCHES[what]
    good = sign(e.ALLREDUCE, [ONES])
    text = describe_mismatch("conv1.weight", {0: good, 1: other, 2: good})
    assert "'conv1.weight'" in text and expected in text


def coordinator(size: int, **settings: Any) -> Coordinator:
    return Coordinator(size, Settings(**settings), Timeline())


_numbers = count()


def request(
    name: str, tensor: torch.Tensor = ONES, kind: int = e.ALLREDUCE, process_set: int = 0, **more: Any
) -> list[Message]:
    """What a rank says to run a collective whose signature it has not defined before."""
    number = next(_numbers)
    return [Define(number, sign(kind, [tensor], **more)), Request(process_set, name, number, None, None)]


def requests(*names: str) -> list[Message]:
    return [message for name in names for message in request(name)]


def names_run(responses: list[Response]) -> list[str]:
    return [name for response in responses if isinstance(response.message, Run) for name in response.message.names]


def test_messages_survive_the_wire() -> None:
    signature = sign(e.ALLREDUCE, [ONES, ONES.double()], prescale=0.5)
    messages = [
        Define(3, signature), Request(1, "a", 3, [2, 3], b"x"), Withdraw(0, "b"), Join(), Leave(),
        Run(e.ALLREDUCE, 1, ["a"], [None], [[b"x", None]], {"a": signature}), Refuse(0, "a", True, "no"), Joined(2),
        AllLeft(), Abort("late", True),
    ]  # fmt: skip
    assert {type(message) for message in messages} == set(get_args(Message))
    left, right = socket.socketpair()
    sender, receiver = channel(left), channel(right)
    sender.send(pack(encode(messages)))
    (plain,) = receiver.receive()
    read = decode(plain)
    assert read == messages and [type(message) for message in read] == [type(message) for message in messages]
    define, run = read[0], read[5]
    assert isinstance(define, Define) and define.signature.prescale == 0.5  # by name again
    assert isinstance(run, Run) and run.absent["a"].types == ("float32", "float64")
    left.close()
    right.close()


def channel(connection: socket.socket) -> Channel:
    """Make a channel of a socket that need not be TCP's."""
    made = Channel.__new__(Channel)
    connection.setblocking(False)
    made.connection, made.closed, made._incoming, made._outgoing = connection, False, bytearray(), bytearray()
    return made


def test_order_does_not_matter_and_ready_ones_travel_together() -> None:
    c = coordinator(2)
    c.take(0, requests("a", "b", "c"))
    assert c.respond() == []
    c.take(1, requests("c", "a"))
    responses = c.respond()
    assert names_run(responses) == ["c", "a"] and len(responses) == 1 and tuple(responses[0].ranks) == (0, 1)
    c.take(1, request("b"))
    assert names_run(c.respond()) == ["b"] and not c.table


def test_a_mismatch_goes_to_all_and_the_rest_runs() -> None:
    c = coordinator(2)
    c.take(0, requests("a", "b"))
    c.take(1, [*request("a", torch.ones(7)), *request("b")])
    (ranks, refusal), (_, run) = c.respond()
    assert tuple(ranks) == (0, 1) and isinstance(refusal, Refuse) and refusal.mismatch
    assert refusal.name == "a" and "[7] on rank 1" in refusal.text
    assert isinstance(run, Run) and run.names == ["b"]


def test_a_number_beyond_the_cache_means_what_it_was_told_last() -> None:
    c = coordinator(2, cache_capacity=0)
    one, other = sign(e.ALLREDUCE, [ONES]), sign(e.ALLREDUCE, [torch.ones(7)])
    for rank in range(2):
        c.take(rank, [Define(0, one), Request(0, "a", 0, None, None), Define(0, other), Request(0, "b", 0, None, None)])
    assert names_run(c.respond()) == ["a", "b"] and not c._known


def test_a_number_that_a_smaller_cache_uses_again_is_not_kept_twice() -> None:
    c = coordinator(2)
    for length in range(1, 10):
        for rank in range(2):
            c.take(rank, [Define(0, sign(e.ALLREDUCE, [torch.ones(length)])), Request(0, "a", 0, None, None)])
        assert names_run(c.respond()) == ["a"]
    assert len(c._known) == 1


def test_what_a_rank_has_withdrawn_is_not_compared_with_the_rest() -> None:
    c = coordinator(3)
    c.take(0, request("a", kind=e.BROADCAST))
    c.take(1, request("a"))
    c.take(0, [Withdraw(0, "a"), *request("a")])
    c.take(2, request("a"))
    ((_, run),) = c.respond()
    assert isinstance(run, Run) and run.kind == e.ALLREDUCE and run.names == ["a"]


@pytest.mark.parametrize(
    ("kind", "operation", "runs"),
    [
        (e.ALLREDUCE, e.SUM, True), (e.ALLREDUCE, e.AVERAGE, True), (e.ALLREDUCE, e.ADASUM, True),
        (e.ALLREDUCE, e.MAX, False), (e.ALLGATHER, e.SUM, False), (e.BROADCAST, e.SUM, False),
        (e.ALLTOALL, e.SUM, False), (e.REDUCESCATTER, e.SUM, False), (e.BARRIER, e.SUM, True),
    ],
)  # fmt: skip
def test_what_runs_while_a_rank_has_joined(kind: int, operation: int, runs: bool) -> None:
    c = coordinator(3)
    c.take(2, [Join()])
    c.take(0, request("a", kind=kind, operation=operation))
    c.take(1, request("a", kind=kind, operation=operation))
    ((ranks, answer),) = c.respond()
    assert tuple(ranks) == (0, 1, 2)
    if runs:
        assert isinstance(answer, Run)
        assert answer.absent == {"a": sign(kind, [ONES], operation=operation)}  # the joined rank learns what to give
    else:
        assert isinstance(answer, Refuse) and "joined" in answer.text and "[2]" in answer.text
    c.take(0, [Join()])
    assert c.respond() == []
    c.take(1, [Join()])
    ((_, answer),) = c.respond()
    assert isinstance(answer, Joined) and answer.last_rank == 1 and not c.joined


def test_a_join_releases_what_waited_for_it() -> None:
    c = coordinator(2)
    c.take(0, requests("a", "b"))
    c.take(1, [Join()])
    assert names_run(c.respond()) == ["a", "b"]


def test_who_left_is_not_waited_for() -> None:
    c = coordinator(3)
    c.take(0, request("a"))
    c.take(2, [Leave()])
    ((ranks, answer),) = c.respond()
    assert list(ranks) == [0] and isinstance(answer, Refuse) and "needs rank 2, which has shut down" in answer.text
    c.take(1, request("a"))
    ((ranks, answer),) = c.respond()
    assert list(ranks) == [1] and isinstance(answer, Refuse)


def test_process_sets_have_names_of_their_own() -> None:
    c = coordinator(3)

    def all_say(kind: int) -> Run:
        for rank in range(3):
            c.take(rank, [Define(0, sign(kind, ranks=(0, 2))), Request(0, "change", 0, None, None)])
        ((_, run),) = c.respond()
        assert isinstance(run, Run)
        return run

    assert all_say(e.ADD_SET).extras == [1] and c.sets[1] == (0, 2)
    c.take(0, [*request("a", process_set=1), *request("a")])
    c.take(2, request("a", process_set=1))
    ((ranks, run),) = c.respond()
    assert tuple(ranks) == (0, 2) and isinstance(run, Run) and run.process_set == 1
    assert all_say(e.REMOVE_SET).extras == [[1]] and list(c.sets) == [0]
    assert all_say(e.REMOVE_SET).extras == [[]]  # which is not there any more


def test_a_stall_is_reported_with_name_and_ranks(caplog: pytest.LogCaptureFixture) -> None:
    c = coordinator(4, stall_seconds=0.001, stall_shutdown_seconds=100.0)
    c.take(0, request("layer.weight"))
    c.take(2, request("layer.weight"))
    c.table[0, "layer.weight"].since -= 50
    c.table[0, "layer.weight"].reported -= 50
    assert c.check_stalls() is None
    assert "'layer.weight' was submitted by ranks [0, 2] 50 s ago and not by ranks [1, 3]" in caplog.text
    c.check_stalls()
    c.table[0, "layer.weight"].since -= 51
    text = c.check_stalls()
    assert text is not None and "not by ranks [1, 3]" in text and "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=100" in text


def test_messages_survive_any_cut() -> None:
    left, right = socket.socketpair()
    receiver = channel(left)
    messages = [[(1, "a", b"x" * n, None, (1.5, True))] for n in (0, 3, 70_000)]
    data = b"".join(pack(message) for message in messages)
    got = []
    for start in range(0, len(data), 997):
        right.sendall(data[start : start + 997])
        got += receiver.receive()
    assert got == messages and not receiver.closed
    right.close()
    assert receiver.receive() == [] and receiver.closed
    left.close()


def test_large_messages_wait_for_room() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    a = Channel(socket.create_connection(listener.getsockname()))
    b = Channel(listener.accept()[0])
    big = [(0, "x", b"y" * 30_000_000)]
    a.send(pack(big))
    a.send(pack(["next"]))
    assert a.must_send
    got: list[Any] = []
    while len(got) < 2:
        a.flush()
        got += b.receive()
    assert got == [big, ["next"]] and not a.must_send
    for closing in (a, b, listener):
        closing.close()


TYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.uint16,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reductions_of_every_type(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randint(1, 4, (5,), generator=generator).to(dtype) for _ in range(3)]
    exact = np.stack([part.double().numpy() for part in parts])
    for operation, expected in {
        e.SUM: exact.sum(0), e.MIN: exact.min(0), e.MAX: exact.max(0), e.PRODUCT: exact.prod(0),
        e.AVERAGE: exact.sum(0) / 3,
    }.items():  # fmt: skip
        if dtype == torch.bool:
            if operation == e.AVERAGE:
                continue
            expected = expected > 0
        elif not dtype.is_floating_point:
            expected = np.trunc(expected)
        copies = [from_bytes(raw_bytes([part]), dtype) for part in parts]
        result = reduce.finish(reduce.combine(copies, operation, [5]), operation, 3, 1.0).to(dtype)
        np.testing.assert_allclose(result.double().numpy(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-3)


def test_an_average_may_not_overflow_on_its_way() -> None:
    parts = [torch.tensor([120], dtype=torch.int8), torch.tensor([110], dtype=torch.int8)]
    assert reduce.finish(reduce.combine(parts, e.AVERAGE, [1]), e.AVERAGE, 2, 1.0).item() == 115
    assert reduce.travelling_type(torch.int8, e.AVERAGE) == torch.int32


def test_buckets_keep_order_kind_and_size() -> None:
    third = BUCKET_BYTES // 3
    layout = make_layout(list(range(9)), ["f"] * 9, [third] * 9)
    assert [number for bucket in layout for number in bucket] == list(range(9))
    assert max(map(len, layout)) == 3 and layout[0] == [0]  # the first is small, so that it leaves early
    assert make_layout([3, 2, 1, 0], ["f"] * 4, [4] * 4, [[0, 3]]) == [[0, 3], [2, 1]]


BAD_SETTINGS = {"HOROVOD_CYCLE_TIME": "-1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "soon", "HOROVOD_CACHE_CAPACITY": "x"}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_settings_are_named(name: str) -> None:
    from rueda.errors import WorldError

    with pytest.raises(WorldError, match=f"{name}: expected a number"):
        read_settings({name: BAD_SETTINGS[name]})
