"""Elastic jobs: processes, hosts and links that are lost and come back; which rank; limits, and what is said."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rueda.errors import LaunchError
from rueda.world.launch.elastic_job.hosts_state import HostPhase, HostState
from rueda.world.launch.elastic_job.placement import Candidate, place
from rueda.world.launch.elastic_job.settings import STRIKES, ElasticSettings
from rueda.world.launch.hosts import Host

# Trains until the file `enough` is there, on whatever workers there are; a line for each world and each tenth step.
LOOP = """
import os, sys, time, torch, rueda
from rueda.world import elastic

def say(what):
    print(f"{what} pid={os.getpid()} rank={world.rank} size={world.size} step={step}", flush=True)

def share():
    with elastic.guard():
        return int(world.broadcast(torch.tensor(step)))

elastic.register()
world, step = rueda.init(), 0
say("began")
if elastic.generation():
    step = share()
while True:
    try:
        with elastic.guard():
            assert world.all_reduce(torch.ones(3)).tolist() == [world.size] * 3
            step += 1
            elastic.progress(step)
            if step % 10 == 0:
                say("trained")
            time.sleep(0.02)
            enough = os.path.exists("enough")
            updates, stops = world.all_reduce(torch.tensor([elastic.updates(), enough]), "max").tolist()
            if stops:
                break
            if updates:
                world = elastic.reform(failed=False, step=step)
                say("changed")
                step = share()
    except elastic.PeerLost:
        world = elastic.reform(failed=True, step=step)
        say("recovered")
        step = share()
say("ended")
"""
_LINE = re.compile(r"\[(\d+)\] (\w+) pid=(\d+) rank=(\d+) size=(\d+) step=(\d+)")


class Job:
    """Reads the lines of an elastic job as they come."""

    def __init__(self, launch: Any, folder: Path) -> None:
        self.launch = launch
        self.folder = folder
        self.pids: dict[int, int] = {}  # by rank, in the last world
        self.seen = ""

    def wait(self, wanted: Callable[[str, int, int], bool]) -> tuple[str, int, int]:
        """Wait for a line: gets its first word, the size of the world and the step."""
        for line in self.launch.process.stdout:
            self.seen += line
            if found := _LINE.match(line):
                _, what, pid, rank, size, step = found.groups()
                self.pids[int(rank)] = int(pid)
                if wanted(what, int(size), int(step)):
                    return what, int(size), int(step)
        raise AssertionError(f"never came: {self.seen}{self.launch.process.stderr.read()}")

    def trains_on(self, size: int) -> int:
        """Wait until so many workers train, and return the step."""
        return self.wait(lambda what, now, step: what == "trained" and now == size)[2]

    def finish(self) -> list[str]:
        """Let it end, and return what the launcher said."""
        (self.folder / "enough").touch()
        status, out, err = self.launch.end_quietly()
        assert status == 0, self.seen + out + "\n".join(err)
        assert self.launch.left() == []
        return [line for line in err if line.startswith("rueda: ")]


def test_survivors_of_a_killed_worker_keep_their_processes(launcher: Any) -> None:
    words = ["--min-np", "1", "--max-np", "3", "--restarts", "1", launcher.script(LOOP)]
    job = Job(launcher.start(*words), launcher.folder)
    before = job.trains_on(3)
    first, killed, last = (job.pids[rank] for rank in range(3))
    os.kill(killed, signal.SIGKILL)
    job.wait(lambda what, size, step: what == "recovered" and size == 2)
    assert job.trains_on(2) > before
    assert {job.pids[0], job.pids[1]} == {first, last}
    assert job.trains_on(3) > before  # the fresh process was let in
    assert (job.pids[0], job.pids[1]) == (first, last) and job.pids[2] not in (first, killed, last)
    said = job.finish()
    assert said[0].startswith("rueda: rank 1 on localhost was ended by SIGKILL") and said[0].endswith(
        "; restart 1 of 1"
    )
    assert said[1:] == [
        "rueda: generation 1: 2 workers", "rueda: generation 2: 3 workers, 1 of them new"
    ]  # fmt: skip


def test_a_stopped_worker_of_a_blocked_collective_is_replaced(launcher: Any) -> None:
    words = ["--min-np", "2", "-np", "2", "--timeout", "2", launcher.script(LOOP)]
    job = Job(launcher.start(*words, RUEDA_TRANSPORT="gloo"), launcher.folder)
    before = job.trains_on(2)
    kept, stopped = job.pids[0], job.pids[1]
    os.kill(stopped, signal.SIGSTOP)
    job.wait(lambda what, size, step: what == "recovered")
    assert job.trains_on(2) > before
    assert job.pids[0] == kept and job.pids[1] != stopped
    (told,) = [line for line in job.finish() if "(--timeout)" in line or "SIGKILL" in line]
    assert told == (
        "rueda: rank 1 on localhost was killed by the launcher since it was stopped (SIGSTOP) for 2 s (--timeout); "
        "restart 1"
    )


def test_a_host_is_cut_off_and_comes_back_and_its_agent_is_killed(launcher: Any, hosts: Any) -> None:
    words = ["-H", "hostA:1,hostB:1", "--ssh", hosts.ssh, "--min-np", "1", "--timeout", "3", launcher.script(LOOP)]
    launch = launcher.start(*words, command=hosts.inside(launcher.rueda))
    job = Job(launch, launcher.folder)
    before = job.trains_on(2)
    kept = job.pids[0]
    _link(hosts, "down")
    alone = job.trains_on(1)
    _link(hosts, "up")
    together = job.trains_on(2)
    agents = [pid for pid, line in launch.processes().items() if "launch.agent" in line and "ssh " not in line]
    for pid in agents:
        if _host_of(pid) == "hostB":
            os.kill(pid, signal.SIGKILL)
    again_alone = job.trains_on(1)
    assert before < alone < together < again_alone < job.trains_on(2)
    assert job.pids[0] == kept
    said = "\n".join(job.finish())
    assert "host hostB is lost: it gave no sign of life for 3 s; it is tried again" in said
    assert said.count("host hostB is back") == 2


def _link(hosts: Any, state: str) -> None:
    subprocess.run(["ip", "-n", f"{hosts.prefix}d", "link", "set", "to-b", state], check=True)


def _host_of(pid: int) -> str:
    """Return the host name of a process, in its own namespace of names."""
    command = ["nsenter", "--target", str(pid), "--uts", "hostname"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


# A program that knows nothing of generations, without torch.
PLAIN = """
import os, signal, sys, time
generation, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
print(f"generation={generation} rank={rank} of={os.environ['WORLD_SIZE']}", flush=True)
def wait():
    while not os.path.exists("enough"):
        time.sleep(0.02)
exec(sys.argv[1])
"""


def plain(launcher: Any, code: str, *words: str) -> list[str]:
    return [*words, launcher.script(PLAIN), code]


def worlds(out: str) -> list[tuple[int, int, int]]:
    found = re.findall(r"generation=(\d+) rank=(\d+) of=(\d+)", out)
    return sorted((int(generation), int(rank), int(of)) for generation, rank, of in found)


def test_a_program_that_knows_nothing_of_it_starts_again(launcher: Any) -> None:
    code = """
if generation < 2:
    if rank == 0:
        open(f"rank-0-{generation}", "w").close()
        time.sleep(300)
    while not os.path.exists(f"rank-0-{generation}"):  # it has printed its line
        time.sleep(0.02)
    os._exit(3)
"""
    status, out, err = launcher.run(*plain(launcher, code, "-np", "2", "--min-np", "2", "--restarts", "2"))
    assert status == 0, err
    assert worlds(out) == [(generation, rank, 2) for generation in range(3) for rank in range(2)]
    lines = [line for line in err.splitlines() if "restart" in line]
    assert lines == [
        f"rueda: rank 1 on localhost failed with exit status 3; restart {number} of 2" for number in (1, 2)
    ]


@pytest.mark.parametrize(
    ("code", "num_starts", "status", "says"),
    [
        ("sys.exit(3)", 2, 3, "rank 0 on localhost failed with exit status 3; 1 restart (--restarts) is used up, so"),
        ("raise ValueError('bad')", 2, 1, "the same error for the second time, so the job ends: ValueError: bad"),
    ],
)
def test_a_job_that_fails_again_and_again_ends(
    code: str, num_starts: int, status: int, says: str, launcher: Any
) -> None:
    words = plain(launcher, f"wait() if rank else exec({code!r})", "-np", "2", "--restarts", "1")
    found, out, err = launcher.run(*words)
    assert found == status, err
    assert [world for world in worlds(out) if world[1] == 0] == [(number, 0, 2) for number in range(num_starts)]
    assert says in err
    assert "rueda: rank 0 on localhost failed with exit status" in err.splitlines()[-1] or "ValueError: bad" in err


def test_the_driver_and_the_agent_do_not_load_torch(launcher: Any) -> None:
    launch = launcher.start(*plain(launcher, "wait()", "--max-np", "1"))
    launch.wait_for_line("generation=0")
    loaded = {line for pid, line in launch.processes().items() if "libtorch" in _maps(pid)}
    assert "libtorch" not in _maps(launch.process.pid)
    assert len(loaded) <= 1, loaded  # the host of the store, which may still be loading it
    (launcher.folder / "enough").touch()
    assert launch.end()[0] == 0


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def test_hosts_come_and_go_as_a_program_lists_them(launcher: Any, pretend_ssh: str) -> None:
    (launcher.folder / "hosts").write_text("alpha:1\n")
    script = launcher.folder / "list hosts"
    script.write_text("#!/bin/sh\ncat hosts\n")
    script.chmod(0o755)
    words = ["--host-discovery-script", "list hosts", "--ssh", pretend_ssh, "--max-np", "3", "--grace", "1"]
    launch = launcher.start(*plain(launcher, "wait()", *words))
    launch.wait_for_line("generation=0 rank=0 of=1")
    (launcher.folder / "hosts").write_text("alpha:1\nbeta:2\n")
    launch.wait_for_line("generation=1 rank=2 of=3")
    (launcher.folder / "hosts").write_text("beta:2\n")
    launch.wait_for_line("generation=2 rank=1 of=2")
    (launcher.folder / "enough").touch()
    status, _, err = launch.end()
    assert status == 0, err
    assert "rueda: 2 more workers can run on beta: all workers start again" in err
    assert "rueda: host alpha leaves (it is no longer listed); its workers have 1 s to commit" in err
    assert launch.left() == []


def test_a_host_that_gets_notice_leaves_and_its_workers_commit(launcher: Any, pretend_ssh: str) -> None:
    words = ["-H", "alpha:1,beta:1", "--ssh", pretend_ssh, "--min-np", "1", "--timeout", "60", launcher.script(LOOP)]
    launch = launcher.start(*words, RUEDA_TRANSPORT="gloo")
    job = Job(launch, launcher.folder)
    job.trains_on(2)
    kept, leaving = job.pids[0], job.pids[1]
    os.kill(_parent(leaving), signal.SIGTERM)
    job.wait(lambda what, size, step: what == "changed" and size == 1)
    job.trains_on(1)
    assert job.pids[0] == kept
    said = "\n".join(job.finish())
    assert "host beta leaves (it got SIGTERM); its workers have 30 s to commit" in said
    assert "restart" not in said  # nothing has failed


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_unknown_hosts_are_each_told_once(launcher: Any, pretend_ssh: str) -> None:
    words = ["-H", "nowhere:1,nowhere2:1", "--ssh", pretend_ssh, "--min-np", "1"]
    status, _, err = launcher.run(*plain(launcher, "wait()", *words))
    assert status == 2 and err.count("\n") == 2
    assert sorted(line.split(";")[0] for line in err.splitlines()) == [
        f"rueda: host {name}: ssh failed (ssh: Could not resolve hostname {name})" for name in ("nowhere2", "nowhere")
    ]


def test_too_few_workers_end_the_job_in_one_line(launcher: Any, pretend_ssh: str) -> None:
    words = ["-H", "alpha:1,nowhere:1", "--ssh", pretend_ssh, "--min-np", "2", "--elastic-timeout", "1"]
    status, out, err = launcher.run(*plain(launcher, "wait()", *words))
    assert status == 75 and worlds(out) == []  # a scheduler may start it again
    lines = [line for line in err.splitlines() if "which they share" not in line]
    assert lines[0].startswith("rueda: host nowhere: ssh failed (ssh: Could not resolve hostname nowhere)")
    assert lines[1:] == [
        "rueda: 1 of at least 2 workers can run; waiting up to 1 s for hosts",
        "rueda: only 1 of at least 2 workers could run for 1 s (--elastic-timeout), so the job ends",
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--min-np", "3", "--max-np", "2"], "--max-np: expected at least --min-np, 3, got 2"),
        (["--min-np", "3", "-np", "2"], "-np: expected at least --min-np, 3, got 2; raise it or lower --min-np"),
        (["--min-np", "3", "-H", "localhost:2"], "the slots of all hosts: expected at least --min-np, 3, got 2; raise"),
        (["--max-np", "0", "-np", "2"], "--max-np: expected 1 or more, got 0"),
        (["--min-np", "0", "-np", "2"], "--min-np: expected 1 or more, got 0"),
        (["-np", "4", "--max-np", "2"], "-np: expected a number from --min-np to --max-np, 1 to 2, got 4"),
        (["-np", "2", "--restarts", "-1"], "--restarts: expected 0 or more, got -1"),
        (["-np", "2", "--timeout", "0"], "--timeout: expected a positive number of seconds, got 0.0"),
        (["-np", "2", "--restarts", "1", "--check"], "--restarts, for an elastic job, has no effect with --check"),
        (["--slurm", "--host-discovery-script", "none"], "--host-discovery-script has no effect with --slurm"),
        (["--restarts", "1"], "the number of workers is missing"),
        (["--host-discovery-script", "none"], "the script none cannot be started (No such file or directory)"),
        (["--max-np", "1", "-H", "nowhere:1", "--ssh", "false"], "host nowhere: "),
    ],
)
def test_mistakes_are_one_line(words: list[str], says: str, launcher: Any) -> None:
    status, out, err = launcher.run(*words, launcher.script(PLAIN), "pass")
    assert status == 2 and out == "", err
    assert err.count("\n") == 1 or "waiting" not in err, err
    assert says in err


def test_survivors_come_first_and_keep_their_order() -> None:
    old = [Candidate(number=n, host="ab"[n // 2], slot=n % 2, rank=n) for n in (1, 2, 3)]
    fresh = [Candidate(number=4, host="a", slot=0), Candidate(number=5, host="c", slot=0)]
    seats = place([*fresh, *reversed(old)], ["c", "a", "b"])
    assert [number for number, _ in sorted(seats.items(), key=lambda item: item[1].rank)] == [1, 4, 2, 3, 5]
    assert [seats[number].local_rank for number in (1, 4, 2, 3, 5)] == [1, 0, 0, 1, 0]
    assert {seat.size for seat in seats.values()} == {5} and {seat.nodes for seat in seats.values()} == {3}
    # Without the fresh process in slot 0, the local ranks have no gap.
    assert [place(old, ["a", "b"])[number].local_rank for number in (1, 2, 3)] == [0, 0, 1]


def test_a_host_that_fails_repeatedly_is_excluded_for_longer_and_longer() -> None:
    settings = ElasticSettings(most=2, cooldown=(10.0, 30.0))
    state = HostState(Host(name="a"), 0, phase=HostPhase.READY)
    now, seconds = time.monotonic(), []
    for _ in range(4 * STRIKES):
        seconds.append(state.strike(now, settings))
    assert seconds == [None, None, 10.0, None, None, 20.0, None, None, 30.0, None, None, 30.0]
    assert not state.may_start(now + 29.0) and state.may_start(now + 31.0)
    assert state.strike(now + 1000.0, settings) is None and state.may_start(now + 1000.0)


@pytest.mark.parametrize("cooldown", [(0.0, 1.0), (2.0, 1.0)])
def test_a_cooldown_is_a_range(cooldown: tuple[float, float]) -> None:
    with pytest.raises(LaunchError, match="--blacklist-cooldown-range"):
        ElasticSettings(most=2, cooldown=cooldown)
