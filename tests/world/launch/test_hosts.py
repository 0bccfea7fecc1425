from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rueda.errors import LaunchError
from rueda.world.launch.hosts import Host, parse_hosts, read_hostfile, take_slots
from rueda.world.launch.plan import LaunchPlan


def test_a_host_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(
        "# the cluster\nserver1 slots=4\n\nserver2:2   # half of it\nada@server3 slots=1 max_slots=9\n10.0.0.7\n"
    )
    assert [(host.name, host.slots) for host in read_hostfile(file)] == [
        ("server1", 4),
        ("server2", 2),
        ("ada@server3", 1),
        ("10.0.0.7", 1),
    ]


BAD = [
    ("", "server1:4"),
    ("a,,b", "server1:4"),
    ("a:x", "server1:4"),
    ("a:0", "1 or more"),
    ("a:-1", "server1:4"),
    ("-oProxyCommand=evil", "a name or an address"),
    ("ada@-oProxyCommand=evil", "a name or an address"),
    ("a;reboot", "a name or an address"),
    ("a$(reboot):2", "a name or an address"),
    ("a b:2", "server1:4"),
    ("höst", "a name or an address"),
    ("a:1,a:2", "listed twice"),
    ("localhost,127.0.0.1", "listed twice"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_a_bad_host_is_one_line(text: str, words: str) -> None:
    with pytest.raises(LaunchError) as caught:
        parse_hosts(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "# nothing\n", b"\xff\xfe\x00"])
def test_a_bad_host_file(content: str | bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LaunchError):
        read_hostfile(file)


@pytest.mark.parametrize(("workers", "expected"), [(None, [3, 2, 1]), (1, [1]), (3, [3]), (4, [3, 1]), (6, [3, 2, 1])])
def test_the_first_slots_are_taken(workers: int | None, expected: list[int]) -> None:
    assert [host.slots for host in take_slots(parse_hosts("a:3,b:2,c:1"), workers)] == expected


@pytest.mark.parametrize("workers", [0, -1, 7])
def test_impossible_numbers_of_workers(workers: int) -> None:
    with pytest.raises(LaunchError, match="-np"):
        take_slots(parse_hosts("a:3,b:2,c:1"), workers)


def test_this_machine_needs_no_ssh() -> None:
    local = ["localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().split(".")[0].upper()]
    assert all(Host(name=name).is_local for name in local)
    assert not Host(name="server1").is_local


def test_ranks_follow_the_hosts() -> None:
    plan = LaunchPlan(program=("a",), hosts=tuple(parse_hosts("a:3,b:2,c:1")))
    assert plan.workers == 6
    assert [plan.first_rank(index) for index in range(3)] == [0, 3, 5]


@pytest.mark.parametrize("program", [(), ("",), ("a", "b\0c")])
def test_a_program_that_cannot_be(program: tuple[str, ...]) -> None:
    with pytest.raises(LaunchError):
        LaunchPlan(program=program)
