"""From the bytes of many workers to lines on the screen."""

from __future__ import annotations

import io
import os
import random
import threading
from pathlib import Path

import pytest

from rueda.errors import LaunchError
from rueda.files.patient_output import write_all
from rueda.hvd.launching import HorovodrunStyle
from rueda.world.launch.forwarding import OutputForwarder
from rueda.world.launch.output import Output, OutputOptions, OutputStyle, prefixed
from rueda.world.launch.protocol import MARK, MESSAGE, STDERR, STDOUT, Receiver, Sender, encode, read_message
from rueda.world.launch.stream_writer import StreamWriter


def forwarded(writes: list[tuple[bytes, int, list[bytes]]]) -> list[tuple[bytes, int, bytes]]:
    """Write pieces into the pipes of several workers at once, and give the frames that come out."""
    reading, writing = os.pipe()
    forwarder = OutputForwarder(Sender(writing))
    ends = [forwarder.pipe(kind, rank) for kind, rank, _ in writes]
    forwarder.start()

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
    forwarder.finish()
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
    frames = forwarded(writes)
    for kind, rank, pieces in writes:
        mine = [data for k, r, data in frames if (k, r) == (kind, rank)]
        assert b"".join(mine) == b"".join(pieces)
        assert all(data.endswith(b"\n") for data in mine[:-1])
        assert mine[-1].endswith(b"the end")


def test_messages_carry_any_text() -> None:
    reading, writing = os.pipe()
    command = {"do": "start", "program": ["tür", "a\nb", "q\"'$", "\udcff"]}
    os.write(writing, encode(command) + encode({"do": "stop"}))
    with os.fdopen(reading, "rb") as stream:
        assert read_message(stream) == command
        assert read_message(stream) == {"do": "stop"}
        os.write(writing, encode(command)[:-1])
        os.close(writing)
        assert read_message(stream) is None  # cut off


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
    output = Output(OutputOptions())
    output.write(STDOUT, 0, b"a\n")
    output.write(STDOUT, 1, b"b\n")
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
    output = Output(OutputOptions(quiet_ranks=True))
    output.write(STDOUT, 1, b"one\n")
    output.write(STDOUT, 0, b"\r 10%\r 20%")
    assert screen.text() == b"\r 10%\r 20%"


def test_a_file_a_rank(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = Output(OutputOptions(folder=tmp_path / "deep" / "logs"))
    output.write(STDOUT, 0, b"a\n")
    output.write(STDERR, 2, b"b\n")
    output.write(STDOUT, 2, b"c")
    output.close()
    assert {file.name: file.read_bytes() for file in (tmp_path / "deep" / "logs").iterdir()} == {
        "rank-0.log": b"a\n",
        "rank-2.log": b"b\nc",
    }
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("style", "earlier", "now"),
    [
        (OutputStyle(), ["rank-0.1.log", "rank-1.1.log", "rank-2.1.log"], ["rank-0.log"]),
        (HorovodrunStyle(), [f"rank.{rank}/stdout.1" for rank in range(3)], ["rank.0/stdout"]),
    ],
)
def test_the_output_of_an_earlier_run_is_kept(
    style: OutputStyle, earlier: list[str], now: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for workers, text in ((3, b"first\n"), (1, b"second\n"), (1, b"third\n")):
        output = Output(OutputOptions(folder=tmp_path, style=style), workers=workers)
        for rank in range(workers):
            output.write(STDOUT, rank, text)
        output.close()
    files = {str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    second = earlier[0].replace("1", "2")
    assert files == {**dict.fromkeys(earlier, b"first\n"), second: b"second\n", now[0]: b"third\n"}
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rueda: ")]
    assert notes[0] == f"rueda: the output of an earlier run is kept in {tmp_path}: {earlier[0]}" and len(notes) == 2


def test_a_write_waits_for_a_slow_reader() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    data = os.urandom(1 << 20)
    thread = threading.Thread(target=lambda: (write_all(writing, data), os.close(writing)))
    thread.start()
    with os.fdopen(reading, "rb") as stream:
        assert stream.read() == data
    thread.join()


def test_a_writer_that_fails_drops_the_rest_and_tells() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    told: list[int] = []
    writer = StreamWriter(lambda: told.append(1))
    for _ in range(3):
        writer.put(writing, b"x")
    writer.drain(10)
    writer.put(writing, b"x")
    assert isinstance(writer.error, BrokenPipeError) and writer.num_waiting == 0
    os.close(writing)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="--output"):
        Output(OutputOptions(folder=tmp_path / "file" / "logs"))


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
