"""From the bytes of many workers to lines on the screen."""

from __future__ import annotations

import io
import os
import random
import threading
from pathlib import Path

import pytest

from rueda.errors import LaunchError
from rueda.world.launch.output import Output, Show, prefixed
from rueda.world.launch.pump import Pump
from rueda.world.launch.wire import MARK, MESSAGE, STDERR, STDOUT, Receiver, Sender, packet, read_packet


def pumped(writes: list[tuple[bytes, int, list[bytes]]]) -> list[tuple[bytes, int, bytes]]:
    """Write pieces into the pipes of several workers at once, and give the frames that come out."""
    reading, writing = os.pipe()
    pump = Pump(Sender(writing))
    ends = [pump.pipe(kind, rank) for kind, rank, _ in writes]
    pump.start()

    def feed(descriptor: int, pieces: list[bytes]) -> None:
        for piece in pieces:
            os.write(descriptor, piece)

    received = bytearray()

    def collect() -> None:
        while data := os.read(reading, 1 << 16):
            received.extend(data)

    collector = threading.Thread(target=collect)
    collector.start()
    feeders = [
        threading.Thread(target=feed, args=(end, pieces)) for end, (_, _, pieces) in zip(ends, writes, strict=True)
    ]
    for thread in feeders:
        thread.start()
    for thread in feeders:
        thread.join()
    pump.finish()
    os.close(writing)
    collector.join()
    return list(Receiver().feed(bytes(received)))


def test_lines_are_whole_however_the_bytes_come() -> None:
    generator = random.Random(0)
    writes = []
    for rank in range(4):
        text = b"".join(b"%d:%d:" % (rank, n) + b"x" * generator.randrange(300) + b"|\n" for n in range(2000))
        cuts = sorted(generator.sample(range(len(text)), 500))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        writes.append((STDOUT, rank, [*pieces, b"the end"]))
    frames = pumped(writes)
    for kind, rank, pieces in writes:
        mine = [data for k, r, data in frames if (k, r) == (kind, rank)]
        assert b"".join(mine) == b"".join(pieces)
        assert all(data.endswith(b"\n") for data in mine[:-1])
        assert mine[-1].endswith(b"the end")


def test_the_wire_carries_any_text() -> None:
    reading, writing = os.pipe()
    order = {"do": "start", "program": ["tür", "a\nb", "q\"'$", "\udcff"]}
    os.write(writing, packet(order) + packet({"do": "stop"}))
    assert read_packet(reading) == order
    assert read_packet(reading) == {"do": "stop"}
    os.write(writing, packet(order)[:-1])
    os.close(writing)
    assert read_packet(reading) is None  # cut off
    os.close(reading)


def test_frames_cut_anywhere() -> None:
    data = b"last login: today\r\n" + MARK + b"M" + bytes([0, 0, 0, 0, 0, 0, 0, 2]) + b"{}"
    data += b"E" + bytes([0, 0, 1, 0, 0, 0, 0, 1]) + b"\n"
    receiver = Receiver()
    frames = [frame for index in range(len(data)) for frame in receiver.feed(data[index : index + 1])]
    assert frames == [(MESSAGE, 0, b"{}"), (STDERR, 256, b"\n")]


class Screen(io.TextIOWrapper):
    def __init__(self, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def text(self) -> bytes:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue()


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_on_a_terminal_only(
    terminal: bool, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stdout", screen)
    output = Output(Show())
    output.lines(STDOUT, 0, b"a\n")
    output.lines(STDOUT, 1, b"b\n")
    text = screen.text()
    if coloured:
        first, second = text.splitlines()
        assert first.startswith(b"\033[") and first.endswith(b"\033[0m a")
        assert first.split(b"[0]")[0] != second.split(b"[1]")[0]
    else:
        assert text == b"[0] a\n[1] b\n"


def test_rank_0_alone_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(True)
    monkeypatch.setattr("sys.stdout", screen)
    output = Output(Show(quiet_ranks=True))
    output.lines(STDOUT, 1, b"one\n")
    output.lines(STDOUT, 0, b"\r 10%\r 20%")
    assert screen.text() == b"\r 10%\r 20%"


def test_a_file_a_rank(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = Output(Show(folder=tmp_path / "deep" / "logs"))
    output.lines(STDOUT, 0, b"a\n")
    output.lines(STDERR, 2, b"b\n")
    output.lines(STDOUT, 2, b"c")
    output.close()
    assert {file.name: file.read_bytes() for file in (tmp_path / "deep" / "logs").iterdir()} == {
        "rank-0.log": b"a\n",
        "rank-2.log": b"b\nc",
    }
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="--output"):
        Output(Show(folder=tmp_path / "file" / "logs"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\n", b"> a\n"),
        (b"\n", b"> \n"),
        (b"a\r\nb\r\n", b"> a\n> b\n"),
        (b"1%\r2%\r", b"> 1%\n> 2%\n"),
        (b"\xff\xfe\n", b"> \xff\xfe\n"),
    ],
)
def test_prefixes(data: bytes, expected: bytes) -> None:
    assert prefixed(b"> ", data) == expected
