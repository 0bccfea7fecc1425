"""The wires of rank 0, with the other ends in the test's hands."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from rueda.hvd.core.star import Channel, pack
from rueda.hvd.core.wires import Wires

Ends = tuple[Wires, dict[int, Channel]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Give the wires to ranks 1 and 2, and what these ranks hold."""
    near, far = {}, {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for rank in (1, 2):
            far[rank] = Channel(socket.create_connection(listener.getsockname()))
            near[rank] = Channel(listener.accept()[0])
    wires = Wires(near, 20.0)
    yield wires, far
    wires.close()
    for channel in far.values():
        channel.close()


def test_what_arrives_says_from_whom(ends: Ends) -> None:
    wires, far = ends
    assert wires.read(0) == []
    far[2].send(pack(["a"]) + pack(["b"]))
    assert wires.read(1000) == [(2, [["a"], ["b"]], False)]
    wires.send(1, pack(["c"]))
    time.sleep(0.05)
    assert far[1].receive() == [["c"]] and far[2].receive() == []


def test_the_last_words_come_with_the_loss_and_the_loss_comes_once(ends: Ends) -> None:
    wires, far = ends
    far[1].send(pack(["last"]))
    far[1].close()
    heard, gone = [], False
    while not gone:
        for rank, messages, closed in wires.read(1000):
            assert rank == 1
            heard += messages
            gone = closed
    assert heard == [["last"]]
    begun = time.monotonic()
    wires.look()  # neither poller reports the dead socket again: both wait as long as they may
    assert wires.read(20) == [] and time.monotonic() - begun > 0.03
    wires.send(1, pack(["nobody"]))  # does nothing
    far[2].send(pack(["still here"]))
    assert wires.read(1000) == [(2, [["still here"]], False)]


def test_who_looks_leaves_it_there(ends: Ends) -> None:
    wires, far = ends
    far[1].send(pack(["a"]))
    wires.look()
    wires.look()
    assert wires.read(0) == [(1, [["a"]], False)]


def test_the_bell_wakes_who_reads_looks_and_pauses(ends: Ends) -> None:
    wires, _ = ends
    for wait in (lambda: wires.read(10_000), lambda: wires.pause(10.0)):
        begun = time.monotonic()
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.05)
        wires.ring()
        waiting.join()
        assert time.monotonic() - begun < 5
    wires.read(0)  # a bell that was heard is silent
    begun = time.monotonic()
    wires.look()
    assert time.monotonic() - begun > 0.015
    for _ in range(100_000):  # more than fit: it rings all the same, and nobody is blocked
        wires.ring()
    wires.look()


def test_what_does_not_fit_goes_when_there_is_room(ends: Ends) -> None:
    wires, far = ends
    big = ["x" * 30_000_000]
    wires.send(1, pack(big))
    assert wires.channels[1].must_send and wires.idle_milliseconds() == 1.0
    got: list[object] = []
    while not got:
        assert wires.read(100) in ([], [(1, [], False)])
        got += far[1].receive()
    assert got == [big] and wires.idle_milliseconds() == 20.0
    assert wires.read(0) in ([], [(1, [], False)])
    assert wires.read(0) == []  # room is not news any more
