"""The core without a network: signatures, messages, the coordinator's decisions, reductions of every type."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest
import torch

from rueda.hvd.core import coordinator as words
from rueda.hvd.core import entries as e
from rueda.hvd.core import reduce
from rueda.hvd.core.coordinator import Coordinator
from rueda.hvd.core.entries import describe_mismatch, from_bytes, raw_bytes, sign
from rueda.hvd.core.known_order import BUCKET_BYTES, make_layout
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
    "device": ((*sign(e.ALLREDUCE, [ONES])[:5], "cuda", ("float32",), ((2, 3),)), "cpu on ranks 0, 2, device cuda"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISMATCHES)
def test_a_mismatch_names_tensor_ranks_and_difference(what: str) -> None:
    other, expected = MISMATCHES[what]
    good = sign(e.ALLREDUCE, [ONES])
    text = describe_mismatch((0, "conv1.weight"), {0: good, 1: other, 2: good})
    assert "'conv1.weight'" in text and expected in text


def coordinator(size: int, **settings: Any) -> Coordinator:
    return Coordinator(size, Settings(**settings), Timeline())


def request(name: str, tensor: torch.Tensor = ONES, kind: int = e.ALLREDUCE, number: int = 0, **more: Any) -> Any:
    return (words.REQUEST, number, name, sign(kind, [tensor], **more), None, None)


def names_run(responses: Any) -> list[str]:
    return [name for _, response in responses if response[0] == words.RUN for name in response[3]]


def test_order_does_not_matter_and_ready_ones_travel_together() -> None:
    c = coordinator(2)
    c.take(0, [request("a"), request("b"), request("c")])
    assert c.respond() == []
    c.take(1, [request("c"), request("a")])
    responses = c.respond()
    assert names_run(responses) == ["c", "a"] and len(responses) == 1 and tuple(responses[0][0]) == (0, 1)
    c.take(1, [request("b")])
    assert names_run(c.respond()) == ["b"] and not c.table


def test_a_mismatch_goes_to_all_and_the_rest_runs() -> None:
    c = coordinator(2)
    c.take(0, [request("a"), request("b")])
    c.take(1, [request("a", torch.ones(7)), request("b")])
    (members, error), (_, run) = c.respond()
    assert tuple(members) == (0, 1) and error[0] == words.ERROR and error[2] == "a" and "[7] on rank 1" in error[4]
    assert run[3] == ["b"]


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
    c.take(2, [(words.JOIN,)])
    c.take(0, [request("a", kind=kind, operation=operation)])
    c.take(1, [request("a", kind=kind, operation=operation)])
    ((members, response),) = c.respond()
    assert tuple(members) == (0, 1, 2)
    assert (response[0] == words.RUN) == runs
    if runs:
        assert response[6] == [sign(kind, [ONES], operation=operation)]  # the joined rank learns what to give
    else:
        assert "joined" in response[4] and "[2]" in response[4]
    c.take(0, [(words.JOIN,)])
    assert c.respond() == []
    c.take(1, [(words.JOIN,)])
    ((_, response),) = c.respond()
    assert response == (words.JOINED, 1) and not c.joined


def test_a_join_releases_what_waited_for_it() -> None:
    c = coordinator(2)
    c.take(0, [request("a"), request("b")])
    c.take(1, [(words.JOIN,)])
    assert names_run(c.respond()) == ["a", "b"]


def test_who_left_is_not_waited_for() -> None:
    c = coordinator(3)
    c.take(0, [request("a")])
    c.take(2, [(words.BYE,)])
    ((members, response),) = c.respond()
    assert list(members) == [0] and "needs rank 2, which has shut down" in response[4]
    c.take(1, [request("a")])
    ((members, response),) = c.respond()
    assert list(members) == [1] and response[0] == words.ERROR


def test_process_sets_have_names_of_their_own() -> None:
    c = coordinator(3)
    for rank in range(3):
        c.take(rank, [(words.REQUEST, 0, "add", (*sign(e.ADD_SET)[:-1], ((0, 2),)), None, None)])
    ((_, response),) = c.respond()
    assert response[4] == [1] and c.sets[1] == (0, 2)
    c.take(0, [request("a", number=1), request("a")])
    c.take(2, [request("a", number=1)])
    ((members, response),) = c.respond()
    assert tuple(members) == (0, 2) and response[2] == 1


def test_a_stall_is_reported_with_name_and_ranks(caplog: pytest.LogCaptureFixture) -> None:
    c = coordinator(4, stall_seconds=0.001, stall_shutdown_seconds=100.0)
    c.take(0, [request("layer.weight")])
    c.take(2, [request("layer.weight")])
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
    receiver = Channel.__new__(Channel)
    left.setblocking(False)
    receiver.connection, receiver.closed, receiver._incoming, receiver._outgoing = left, False, bytearray(), bytearray()
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
