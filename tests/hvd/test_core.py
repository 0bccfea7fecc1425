"""The core without a network: signatures, messages, the coordinator, reductions of every dtype."""

from __future__ import annotations

import socket
from itertools import count
from typing import Any, get_args

import numpy as np
import pytest
import torch

from rueda.hvd.core import entries as e
from rueda.hvd.core import reduce
from rueda.hvd.core.bucket_reducer import BUCKET_BYTES, assign_buckets
from rueda.hvd.core.channel import Channel, pack
from rueda.hvd.core.coordinator import Coordinator, Response
from rueda.hvd.core.entries import describe_mismatch, from_bytes, signature_of, to_bytes
from rueda.hvd.core.messages import (
    Abort,
    AllLeft,
    Define,
    Leave,
    Message,
    Number,
    Refuse,
    Repeat,
    Replay,
    Request,
    Run,
    RunRepeated,
    Withdraw,
    decode,
    encode,
)  # fmt: skip
from rueda.hvd.core.settings import Settings, read_settings
from rueda.hvd.core.timeline import Timeline

ONES = torch.ones(2, 3)

MISMATCHES: dict[str, tuple[Any, str]] = {
    "shape": (signature_of(e.ALLREDUCE, [torch.ones(2, 4)]), "shape [2, 3] on ranks 0, 2, shape [2, 4] on rank 1"),
    "type": (signature_of(e.ALLREDUCE, [ONES.double()]), "type float32 on ranks 0, 2, type float64 on rank 1"),
    "operation": (signature_of(e.ALLREDUCE, [ONES], operation=e.MAX), "Sum on ranks 0, 2, operation Max on rank 1"),
    "collective": (signature_of(e.BROADCAST, [ONES]), "allreduce on ranks 0, 2, collective broadcast on rank 1"),
    "factor": (signature_of(e.ALLREDUCE, [ONES], prescale=0.5), "1.0 on ranks 0, 2, prescale factor 0.5 on rank 1"),
    "group": (signature_of(e.ALLREDUCE, [ONES, ONES]), "tensors 1 on ranks 0, 2, number of tensors 2 on rank 1"),
    "device": (signature_of(e.ALLREDUCE, [ONES])._replace(device="cuda"), "cpu on ranks 0, 2, device cuda on rank 1"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISMATCHES)
def test_a_mismatch_names_tensor_ranks_and_difference(what: str) -> None:
    other, expected = MISMATCHES[what]
    good = signature_of(e.ALLREDUCE, [ONES])
    text = describe_mismatch("conv1.weight", {0: good, 1: other, 2: good})
    assert "'conv1.weight'" in text and expected in text


def coordinator(size: int, **settings: Any) -> Coordinator:
    return Coordinator(size, Settings(**settings), Timeline())


_numbers = count()


def request(
    name: str, tensor: torch.Tensor = ONES, kind: int = e.ALLREDUCE, process_set: int = 0, **more: Any
) -> list[Message]:
    """Return the messages that request a collective with a new signature."""
    number = next(_numbers)
    return [Define(number, signature_of(kind, [tensor], **more)), Request(process_set, name, number, None, None)]


def join() -> list[Message]:
    return [Define(10**6, signature_of(e.JOIN)), Request(e.JOIN_SET, "join", 10**6, None, None)]


def requests(*names: str) -> list[Message]:
    return [message for name in names for message in request(name)]


def names_run(responses: list[Response]) -> list[str]:
    return [name for response in responses if isinstance(response.message, Run) for name in response.message.names]


def test_messages_are_equal_after_sending() -> None:
    signature = signature_of(e.ALLREDUCE, [ONES, ONES.double()], prescale=0.5)
    messages = [
        Define(3, tuple(signature)), Request(1, "a", 3, [2, 3], b"x"), Withdraw(0, e.BROADCAST, "b"), Leave(),
        Run(e.ALLREDUCE, 1, ["a"], [None], [[b"x", None]], {"a": tuple(signature)}),
        Refuse(0, e.ALLREDUCE, "a", True, "no"), AllLeft(), Abort("late", True), Repeat(0, 1 << 300),
        Number(1, 7, [("a", tuple(signature))]), RunRepeated(0, 1 << 300),
        Replay(0, e.BROADCAST, "b", ("float32",), ((2,),), (b"12345678",)),
    ]  # fmt: skip
    assert {type(message) for message in messages} == set(get_args(Message))
    left, right = socket.socketpair()
    sender, receiver = channel(left), channel(right)
    sender.send(pack(encode(messages)))
    (plain,) = receiver.receive()
    read = decode(plain)
    assert read == messages and [type(message) for message in read] == [type(message) for message in messages]
    left.close()
    right.close()


def channel(connection: socket.socket) -> Channel:
    """Make a channel from a socket that need not use TCP."""
    made = Channel.__new__(Channel)
    connection.setblocking(False)
    made.connection, made.closed, made._incoming, made._outgoing = connection, False, bytearray(), bytearray()
    return made


def test_submission_order_does_not_matter_and_ready_collectives_share_a_response() -> None:
    c = coordinator(2)
    c.receive(0, requests("a", "b", "c"))
    assert c.respond() == []
    c.receive(1, requests("c", "a"))
    responses = c.respond()
    assert names_run(responses) == ["c", "a"] and len(responses) == 1 and tuple(responses[0].ranks) == (0, 1)
    c.receive(1, request("b"))
    assert names_run(c.respond()) == ["b"] and not c.pending


def test_a_mismatch_is_sent_to_all_ranks_and_other_collectives_run() -> None:
    c = coordinator(2)
    c.receive(0, requests("a", "b"))
    c.receive(1, [*request("a", torch.ones(7)), *request("b")])
    (ranks, refusal), (_, run) = c.respond()
    assert tuple(ranks) == (0, 1) and isinstance(refusal, Refuse) and refusal.mismatch
    assert refusal.name == "a" and "[7] on rank 1" in refusal.text
    assert isinstance(run, Run) and run.names == ["b"]


def test_a_number_beyond_the_cache_has_its_last_definition() -> None:
    c = coordinator(2, cache_capacity=0)
    one, other = signature_of(e.ALLREDUCE, [ONES]), signature_of(e.ALLREDUCE, [torch.ones(7)])
    for rank in range(2):
        c.receive(
            rank, [Define(0, one), Request(0, "a", 0, None, None), Define(0, other), Request(0, "b", 0, None, None)]
        )
    assert names_run(c.respond()) == ["a", "b"] and not c._interned


def test_signatures_that_a_smaller_cache_redefines_do_not_accumulate() -> None:
    c = coordinator(2)
    for length in range(1, 10):
        for rank in range(2):
            c.receive(
                rank, [Define(0, signature_of(e.ALLREDUCE, [torch.ones(length)])), Request(0, "a", 0, None, None)]
            )
        assert names_run(c.respond()) == ["a"]
    assert len(c._interned) == 1


def test_a_withdrawn_request_is_not_compared() -> None:
    c = coordinator(3)
    c.receive(0, request("a", torch.ones(7)))
    c.receive(1, request("a"))
    c.receive(0, [Withdraw(0, e.ALLREDUCE, "a"), *request("a")])
    c.receive(2, request("a"))
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
def test_which_collectives_run_while_a_rank_has_joined(kind: int, operation: int, runs: bool) -> None:
    c = coordinator(3)
    c.receive(2, join())
    c.receive(0, request("a", kind=kind, operation=operation))
    c.receive(1, request("a", kind=kind, operation=operation))
    ((ranks, answer),) = c.respond()
    assert tuple(ranks) == (0, 1, 2)
    if runs:
        assert isinstance(answer, Run)
        assert answer.absent == {
            "a": signature_of(kind, [ONES], operation=operation)
        }  # the joined rank learns what to give
    else:
        assert isinstance(answer, Refuse) and "joined" in answer.text and "[2]" in answer.text
    c.receive(0, join())
    assert c.respond() == []
    c.receive(1, join())
    ((_, answer),) = c.respond()
    assert isinstance(answer, Run) and answer.kind == e.JOIN and answer.extras == [1] and not c.joined


def test_a_join_releases_pending_allreduces() -> None:
    c = coordinator(2)
    c.receive(0, requests("a", "b"))
    c.receive(1, join())
    assert names_run(c.respond()) == ["a", "b"]


def test_a_join_fails_on_all_ranks_when_one_has_left() -> None:
    c = coordinator(3)
    c.receive(0, join())
    c.receive(2, [Leave()])
    c.receive(1, join())
    responses = c.respond()
    assert [list(ranks) for ranks, _ in responses] == [[0], [1]] and not c.joined
    for _, answer in responses:
        assert answer == Refuse(e.JOIN_SET, e.JOIN, "join", False, "'join' needs rank 2, which has shut down")


def test_a_tensor_may_have_the_name_of_a_join() -> None:
    c = coordinator(2)
    c.receive(0, join())
    c.receive(1, request("join"))
    assert names_run(c.respond()) == ["join"] and c.joined == {0}
    c.receive(1, join())
    ((_, answer),) = c.respond()
    assert isinstance(answer, Run) and answer.kind == e.JOIN and answer.extras == [1] and not c.joined


def test_a_request_of_a_joined_rank_is_not_released_twice() -> None:
    c = coordinator(2)
    c.receive(1, [*join(), *request("other")])
    c.receive(0, request("a"))  # complete, since rank 1 has joined
    c.receive(1, request("a"))  # from another thread of rank 1
    assert names_run(c.respond()) == ["a"]


def test_a_join_that_waits_is_no_stall(caplog: pytest.LogCaptureFixture) -> None:
    c = coordinator(2, stall_seconds=0.001, stall_shutdown_seconds=0.002)
    c.receive(0, join())
    c.pending[e.JOIN_SET, e.JOIN, "join"].since -= 50
    assert c.check_stalls() is None and not caplog.text


def test_what_waits_in_a_removed_process_set_fails() -> None:
    c = coordinator(3)
    c.sets[1] = (0, 2)
    c.receive(0, request("early", process_set=1))
    for rank in range(3):
        c.receive(rank, [Define(0, signature_of(e.REMOVE_SET, ranks=(0, 2))), Request(0, "remove", 0, None, None)])
    (ranks, refusal), (_, run) = c.respond()
    assert list(ranks) == [0] and isinstance(refusal, Refuse) and "it was removed" in refusal.text
    assert isinstance(run, Run) and run.extras == [[1]]
    c.receive(2, request("late", process_set=1))
    ((ranks, refusal),) = c.respond()
    assert list(ranks) == [2] and isinstance(refusal, Refuse) and "it was removed" in refusal.text


def test_what_is_ready_after_the_removal_of_its_process_set_fails() -> None:
    c = coordinator(2)
    c.sets[1] = (1,)
    for rank in range(2):
        c.receive(rank, [Define(0, signature_of(e.REMOVE_SET, ranks=(1,))), Request(0, "remove", 0, None, None)])
    c.receive(1, request("late", process_set=1))  # before rank 1 has received the response to the removal
    (ranks, refusal), (_, run) = c.respond()
    assert list(ranks) == [1] and isinstance(refusal, Refuse) and "it was removed" in refusal.text
    assert isinstance(run, Run) and run.extras == [[1]] and not c.pending


def test_a_collective_that_needs_a_rank_that_left_fails() -> None:
    c = coordinator(3)
    c.receive(0, request("a"))
    c.receive(2, [Leave()])
    ((ranks, answer),) = c.respond()
    assert list(ranks) == [0] and isinstance(answer, Refuse) and "needs rank 2, which has shut down" in answer.text
    c.receive(1, request("a"))
    ((ranks, answer),) = c.respond()
    assert list(ranks) == [1] and isinstance(answer, Refuse)


def test_names_are_matched_within_a_process_set() -> None:
    c = coordinator(3)

    def all_say(kind: int) -> Run:
        for rank in range(3):
            c.receive(rank, [Define(0, signature_of(kind, ranks=(0, 2))), Request(0, "change", 0, None, None)])
        ((_, run),) = c.respond()
        assert isinstance(run, Run)
        return run

    assert all_say(e.ADD_SET).extras == [1] and c.sets[1] == (0, 2)
    c.receive(0, [*request("a", process_set=1), *request("a")])
    c.receive(2, request("a", process_set=1))
    ((ranks, run),) = c.respond()
    assert tuple(ranks) == (0, 2) and isinstance(run, Run) and run.process_set == 1
    assert all_say(e.REMOVE_SET).extras == [[1]] and 1 not in c.sets
    assert all_say(e.REMOVE_SET).extras == [[]]  # which is not there any more


def test_a_stall_is_reported_with_name_and_ranks(caplog: pytest.LogCaptureFixture) -> None:
    c = coordinator(4, stall_seconds=0.001, stall_shutdown_seconds=100.0)
    c.receive(0, request("layer.weight"))
    c.receive(2, request("layer.weight"))
    c.pending[0, e.ALLREDUCE, "layer.weight"].since -= 50
    c.pending[0, e.ALLREDUCE, "layer.weight"].reported -= 50
    assert c.check_stalls() is None
    assert "'layer.weight' was submitted by ranks [0, 2] 50 s ago and not by ranks [1, 3]" in caplog.text
    c.check_stalls()
    c.pending[0, e.ALLREDUCE, "layer.weight"].since -= 51
    text = c.check_stalls()
    assert text is not None and "not by ranks [1, 3]" in text and "the limit of 100 s (--stall-timeout)" in text


def test_one_name_may_be_in_flight_in_collectives_of_different_kinds(caplog: pytest.LogCaptureFixture) -> None:
    """As in Horovod, which puts the kind before the name; a stall says which kind the late rank has submitted."""
    c = coordinator(2, stall_seconds=1.0)
    c.receive(0, request("x"))
    c.receive(1, request("x", kind=e.BROADCAST))
    assert c.respond() == []
    for pending in c.pending.values():
        pending.since -= 50
        pending.reported -= 50
    c.check_stalls()
    assert "allreduce 'x' was submitted by ranks [0] 50 s ago and not by ranks [1], which submitted broadcast 'x'" in (
        caplog.text
    )
    c.receive(0, request("x", kind=e.BROADCAST))
    c.receive(1, request("x"))
    assert [(response.message.kind, response.message.names) for response in c.respond()] == [  # type: ignore[union-attr]
        (e.BROADCAST, ["x"]),
        (e.ALLREDUCE, ["x"]),
    ]


def test_ranks_that_all_block_in_different_kinds_of_one_name_are_told_at_once() -> None:
    c = coordinator(2)
    for rank, kind in ((0, e.ALLREDUCE), (1, e.BROADCAST)):
        c.receive(rank, [Define(0, signature_of(kind, [ONES])), Request(0, "m", 0, None, None, True)])
    refused = c.respond()
    assert [list(ranks) for ranks, _ in refused] == [[0], [1]] and not c.pending
    for _, refusal in refused:
        assert isinstance(refusal, Refuse) and refusal.mismatch
        assert "collective allreduce on rank 0, collective broadcast on rank 1" in refusal.text


def test_the_error_of_one_rank_is_sent_to_all_that_have_not_left() -> None:
    c = coordinator(3)
    c.receive(1, [Leave()])
    c.receive(2, [Abort("rank 2: no memory", False)])
    ((ranks, answer),) = c.respond()
    assert list(ranks) == [0, 2] and answer == Abort("rank 2: no memory", False)


def test_messages_may_arrive_in_any_fragments() -> None:
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


def test_large_messages_are_sent_in_parts() -> None:
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
        copies = [from_bytes(to_bytes([part]), dtype) for part in parts]
        result = reduce.finish(reduce.combine(copies, operation, [5]), operation, 3, 1.0).to(dtype)
        np.testing.assert_allclose(result.double().numpy(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-3)


def test_the_sum_of_an_average_does_not_overflow() -> None:
    parts = [torch.tensor([120], dtype=torch.int8), torch.tensor([110], dtype=torch.int8)]
    assert reduce.finish(reduce.combine(parts, e.AVERAGE, [1]), e.AVERAGE, 2, 1.0).item() == 115
    assert reduce.communication_dtype(torch.int8, e.AVERAGE) == torch.int32


def test_buckets_keep_order_kind_and_size() -> None:
    third = BUCKET_BYTES // 3
    layout = assign_buckets(list(range(9)), ["f"] * 9, [third] * 9)
    assert [number for bucket in layout for number in bucket] == list(range(9))
    assert max(map(len, layout)) == 3 and layout[0] == [0]  # the first is small, so that it leaves early
    assert assign_buckets([3, 2, 1, 0], ["f"] * 4, [4] * 4, [[0, 3]]) == [[0, 3], [2, 1]]


BAD_SETTINGS = {"HOROVOD_CYCLE_TIME": "-1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "soon", "HOROVOD_CACHE_CAPACITY": "x"}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_settings_are_named(name: str) -> None:
    from rueda.errors import WorldError

    with pytest.raises(WorldError, match=f"{name}: expected a number"):
        read_settings({name: BAD_SETTINGS[name]})


def test_a_failure_aborts_the_process_groups() -> None:
    """The kernels of NCCL would otherwise wait for a rank that has died until the process ends."""
    from rueda.hvd.common.exceptions import HorovodInternalError
    from rueda.hvd.core.engine import Engine

    class Group:
        aborted = closed = False

        def abort(self) -> None:
            self.aborted = True

        def shutdown(self) -> None:
            self.closed = True

    engine, group = Engine(None, 0, 1, (0, 1), Settings(), torch.device("cpu")), Group()
    engine.groups._groups["0", "cuda"] = group
    engine.fail(HorovodInternalError("rank 1 is gone"))
    assert group.aborted
    with pytest.raises(HorovodInternalError, match="aborted"):
        engine.groups.get("1", (0, 1), "cpu")
    engine.close()
    assert group.closed
