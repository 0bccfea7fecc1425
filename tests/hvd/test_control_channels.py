"""The control channels of rank 0; the test holds the other ends."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from rueda.hvd.core.channel import Channel, connect_channels, pack
from rueda.hvd.core.control_channels import ControlChannels

Ends = tuple[ControlChannels, dict[int, Channel]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Give the control channels of rank 0 to ranks 1 and 2, and the channels of these ranks."""
    near, far = {}, {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for rank in (1, 2):
            far[rank] = Channel(socket.create_connection(listener.getsockname()))
            near[rank] = Channel(listener.accept()[0])
    channels = ControlChannels(near, 20.0)
    yield channels, far
    channels.close()
    for channel in far.values():
        channel.close()


def test_messages_come_with_their_rank(ends: Ends) -> None:
    channels, far = ends
    assert channels.receive(0) == []
    far[2].send(pack(["a"]) + pack(["b"]))
    assert channels.receive(1000) == [(2, [["a"], ["b"]], False)]
    channels.send(1, pack(["c"]))
    time.sleep(0.05)
    assert far[1].receive() == [["c"]] and far[2].receive() == []


def test_the_last_messages_of_a_closed_connection_arrive_and_it_is_reported_once(ends: Ends) -> None:
    channels, far = ends
    far[1].send(pack(["last"]))
    far[1].close()
    received, gone = [], False
    while not gone:
        for rank, messages, closed in channels.receive(1000):
            assert rank == 1
            received += messages
            gone = closed
    assert received == [["last"]]
    begun = time.monotonic()
    channels.wait_until_readable()  # neither poll reports the closed socket again: both wait their full time
    assert channels.receive(20) == [] and time.monotonic() - begun > 0.03
    channels.send(1, pack(["nobody"]))  # does nothing
    far[2].send(pack(["still here"]))
    assert channels.receive(1000) == [(2, [["still here"]], False)]


def test_waiting_until_readable_reads_nothing(ends: Ends) -> None:
    channels, far = ends
    far[1].send(pack(["a"]))
    channels.wait_until_readable()
    channels.wait_until_readable()
    assert channels.receive(0) == [(1, [["a"]], False)]


def test_a_wakeup_interrupts_every_wait(ends: Ends) -> None:
    channels, _ = ends
    for wait in (lambda: channels.receive(10_000), lambda: channels.sleep(10.0)):
        begun = time.monotonic()
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.05)
        channels.wake()
        waiting.join()
        assert time.monotonic() - begun < 5
    channels.receive(0)  # consumes the wakeup of one thread,
    channels.sleep(0)  # and that of the other
    begun = time.monotonic()
    channels.wait_until_readable()
    assert time.monotonic() - begun > 0.015
    for _ in range(100_000):  # more than fit into the socket: none blocks
        channels.wake()
    channels.wait_until_readable()


def test_an_alarm_wakes_the_background_thread_unless_it_is_cancelled(ends: Ends) -> None:
    channels, _ = ends
    for wait in (channels.wait_until_readable, lambda: channels.sleep(0.02)):
        channels.alarm.set(0.001)
        while not wait():
            pass
        assert not wait()  # it rings once
        channels.alarm.set(0.001)
        time.sleep(0.01)
        channels.alarm.cancel()
        assert not wait()
    channels.alarm.set(0.0)
    while not channels.sleep(1.0):
        pass


def test_a_large_frame_is_sent_when_the_socket_has_room(ends: Ends) -> None:
    channels, far = ends
    big = ["x" * 30_000_000]
    channels.send(1, pack(big))
    assert channels.channels[1].must_send and channels.idle_milliseconds() == 1.0
    got: list[object] = []
    while not got:
        assert channels.receive(1) in ([], [(1, [], False)])
        got += far[1].receive()
    assert got == [big] and channels.idle_milliseconds() == 20.0
    assert channels.receive(0) in ([], [(1, [], False)])
    assert channels.receive(0) == []  # room is reported no more


def test_connections_of_other_programs_are_closed_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A line with the token and a rank that is no number was a TypeError in rank 0."""
    store, found = dist.HashStore(), []
    arguments = {"local": True, "seconds": 30.0}
    accepting = threading.Thread(target=lambda: found.append(connect_channels(store, 0, 2, "zero", **arguments)))
    accepting.start()
    (address,), port, token = json.loads(store.get("control"))
    silent = socket.create_connection((address, port), timeout=5)  # the others are served meanwhile
    for line in (b"GET / HTTP/1.1\n", b"7\n", json.dumps([[1], token, 0]).encode() + b"\n", pack((1, "x")) * 9):
        with socket.create_connection((address, port), timeout=5) as stranger:
            assert len(stranger.recv(64)) == 32  # the challenge, and nothing else
            with contextlib.suppress(OSError):  # reset, since rank 0 does not read all of it
                stranger.sendall(line)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(1) == b""
    channels, info = connect_channels(store, 1, 2, "one", **arguments)
    accepting.join()
    silent.close()
    assert re.fullmatch(  # the silent one is refused after 5 seconds
        "rueda: refused [45] connections to the control channel without the job's key, the last from 127.0.0.1; "
        "see SECURITY.md\n", capsys.readouterr().err,
    )  # fmt: skip
    found.append((channels, info))
    for opened, known in found:
        assert known == ["zero", "one"]
        for channel in opened.values():
            channel.close()
