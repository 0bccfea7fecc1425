"""`rueda run` over several hosts: with a pretended ssh anywhere, and for real where namespaces can be made."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

TELL = """
import json, os, socket, sys
total = None
if "alone" not in sys.argv:
    import torch, rueda
    world = rueda.init()
    total = world.all_reduce(torch.tensor([float(world.rank), 1.0])).tolist()
names = ["GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GIVEN", "RUEDA_GIVEN", "HIDDEN", "GLOO_SOCKET_IFNAME"]
# The driver's own line holds it, if the user typed it there.
lines = os.popen("ps -eo args").read().splitlines()
seen = any("secret " + "value" in line for line in lines if "rueda.cli" not in line and "mpirun" not in line)
print(json.dumps([socket.gethostname(), total, sys.argv[1:], {n: os.environ.get(n) for n in names}, os.getcwd(), seen]))
"""
ODD = ["a b", "'", '"', "$HOME $(date) `date` !!", "ü", "a\nb", "", "*", "-H", "\\"]


def told(out: str) -> dict[int, Any]:
    return {int(line[1]): json.loads(line[4:]) for line in out.splitlines() if line.startswith("[") and line[4] == "["}


def test_two_hosts_through_a_pretended_ssh(launcher: Any, pretend_ssh: str) -> None:
    words = ["-H", "alpha:1,beta:2", "--ssh", pretend_ssh, "-x", "GIVEN=secret value", "python", launcher.script(TELL)]
    status, out, err = launcher.run(*words, *ODD, "alone", RUEDA_GIVEN="1", HIDDEN="x", GLOO_SOCKET_IFNAME="lo")
    assert status == 0, err
    answers = told(out)
    assert sorted(answers) == [0, 1, 2], out
    for rank, (_, _, arguments, variables, folder, seen) in answers.items():
        assert arguments == [*ODD, "alone"]
        assert folder == str(launcher.folder)
        assert not seen  # no value stands on a command line, where every user of the host could read it
        assert variables == {
            "GROUP_RANK": ["0", "1", "1"][rank],
            "LOCAL_RANK": ["0", "0", "1"][rank],
            "LOCAL_WORLD_SIZE": ["1", "2", "2"][rank],
            "GIVEN": "secret value",
            "RUEDA_GIVEN": "1",
            "HIDDEN": None,
            "GLOO_SOCKET_IFNAME": "lo",
        }
    assert "Welcome" not in out + err


HOROVOD = """
import json, os, sys
try:
    import horovod
    found = horovod.__name__
except ModuleNotFoundError:
    found = None
names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME", "CYCLE_TIME"]
print(json.dumps([found, *(os.environ.get(f"HOROVOD_{name}") for name in names)]))
"""


def test_a_horovod_script_finds_itself_on_every_host(launcher: Any, pretend_ssh: str) -> None:
    words = ["-H", "alpha:1,beta:2", "--ssh", pretend_ssh, launcher.script(HOROVOD)]
    status, out, err = launcher.run(*words, HOROVOD_CYCLE_TIME="3", GLOO_SOCKET_IFNAME="lo")
    assert status == 0, err
    assert told(out) == {
        0: ["rueda.hvd", "0", "3", "0", "1", "0", "2", "alpha", "3"],
        1: ["rueda.hvd", "1", "3", "0", "2", "1", "2", "beta", "3"],
        2: ["rueda.hvd", "2", "3", "1", "2", "0", "1", "beta", "3"],
    }
    words[1] = "alpha:1"
    status, out, err = launcher.run("-x", "RUEDA_HOROVOD=0", *words, GLOO_SOCKET_IFNAME="lo")
    assert status == 0, err
    assert [found for found, *_ in told(out).values()] == [None]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-H", "nowhere", "work.py"], "host nowhere: ssh failed (ssh: Could not resolve hostname nowhere)"),
        (["-H", "alpha", "--python", "/no/python", "work.py"], "host alpha: there is no /no/python"),
        (["-H", "alpha", "--python", "BARE", "work.py"], "host alpha: Rueda is not installed for BARE"),
        (["-H", "alpha:2", "missing.py"], "host alpha: the script missing.py does not exist"),
        (["-H", "alpha:2", "./broken"], "host alpha: ./broken cannot be started (Exec format error)"),
        (["-H", "alpha,nowhere", "work.py"], "host nowhere: ssh failed"),
    ],
)
def test_what_is_missing_is_one_line(
    words: list[str], expected: str, launcher: Any, pretend_ssh: str, tmp_path: Path
) -> None:
    launcher.script("print('started')")
    launcher.script("", "broken")
    (launcher.folder / "broken").chmod(0o755)
    if "BARE" in words:  # an interpreter without packages
        venv.create(tmp_path / "bare", symlinks=True)
        bare = str(tmp_path / "bare" / "bin" / "python")
        words = ["-x", "PYTHONPATH=", *(bare if word == "BARE" else word for word in words)]
        expected = expected.replace("BARE", bare)
    launch = launcher.start("--ssh", pretend_ssh, *words)
    status, out, lines = launch.end_quietly()
    assert (status, out, len(lines)) == (2, "", 1), lines
    (line,) = lines
    assert line.startswith(f"rueda: {expected}"), line
    assert ";" in line  # and what to do
    assert launch.left() == []


def test_a_directory_that_the_other_host_has_not(launcher: Any, pretend_ssh: str, tmp_path: Path) -> None:
    """Two hosts, of which one has no such directory: the pretended ssh removes it first."""
    script = Path(pretend_ssh)
    script.write_text(script.read_text().replace("echo Welcome", f"rm -r '{launcher.folder}'; echo Welcome"))
    status, _, err = launcher.run("-H", "alpha", "--ssh", pretend_ssh, launcher.script("print('started')"))
    assert status == 2
    assert err.startswith("rueda: host alpha: the directory ") and err.count("\n") == 1


@pytest.mark.parametrize("launcher_name", ["rueda run", "rueda run from the first host", "mpirun"])
def test_real_hosts(launcher_name: str, launcher: Any, hosts: Any) -> None:
    script = launcher.script(TELL)
    if launcher_name == "mpirun":
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed")
        command = ["mpirun", "--allow-run-as-root", "-H", "hostA:1,hostB:2", "--mca", "plm_rsh_agent", hosts.ssh]
        command += ["--mca", "btl_tcp_if_include", "10.77.0.0/24", "--mca", "oob_tcp_if_include", "10.77.0.0/24"]
        command += ["--oversubscribe", "-x", "PYTHONPATH", "-x", "GIVEN", "-x", "RUEDA_TEST_MARK", "--tag-output"]
        words = [sys.executable, script, *ODD]
    else:
        command = launcher.rueda
        listed = "hostA:1,hostB:4" if launcher_name == "rueda run" else "localhost:1,hostB:4"
        words = ["-np", "3", "-H", listed, "--ssh", hosts.ssh, "-x", "GIVEN", script, *ODD]
    environment = {"GIVEN": "secret value", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    launch = launcher.start(*words, command=hosts.inside(command), **environment)
    status, out, err = launch.end()
    assert status == 0, err
    found = [json.loads(line[line.index('["host') :]) for line in out.splitlines() if '["host' in line]
    first = "hostD" if "first" in launcher_name else "hostA"
    assert sorted(answer[0] for answer in found) == sorted([first, "hostB", "hostB"]), out + err
    for _, total, arguments, variables, folder, seen in found:
        assert total == [3.0, 3.0]
        assert arguments == ODD
        assert (variables["GIVEN"], folder, seen) == ("secret value", str(launcher.folder), False)
    if launcher_name != "mpirun":
        places = {rank: (answer[0], answer[3]["LOCAL_RANK"]) for rank, answer in told(out).items()}
        assert places == {0: (first, "0"), 1: ("hostB", "0"), 2: ("hostB", "1")}
        cards = {answer[0]: answer[3]["GLOO_SOCKET_IFNAME"] for answer in found}
        assert cards == {first: "bridge" if first == "hostD" else "net0", "hostB": "net0"}
    assert launch.left() == []


TROUBLE = """
import os, subprocess, sys, time
subprocess.Popen(["sh", "-c", "setsid sleep 300 & sleep 300 & sleep 300"])
print("ready", flush=True)
here = os.path.dirname(os.path.abspath(__file__))
open(os.path.join(here, "ready-" + os.environ["RANK"]), "w").close()
if os.environ["RANK"] == "2" and sys.argv[1] == "fail":
    while not all(os.path.exists(os.path.join(here, f"ready-{rank}")) for rank in range(3)):
        time.sleep(0.05)
    time.sleep(0.5)  # until the other ranks' lines have come
    print("last words", file=sys.stderr)
    sys.exit(3)
time.sleep(300)
"""


@pytest.mark.parametrize(("how", "expected"), [("fail", 3), ("SIGINT", 130), ("SIGKILL", -9), ("lost connection", 1)])
def test_trouble_on_real_hosts_leaves_nothing_behind(how: str, expected: int, launcher: Any, hosts: Any) -> None:
    words = ["-H", "hostA:1,hostB:2", "--ssh", hosts.ssh, launcher.script(TROUBLE), how]
    launch = launcher.start(*words, command=hosts.inside(launcher.rueda))
    for _ in range(3):
        launch.wait_for_line("ready")
    if how.startswith("SIG"):
        os.killpg(launch.process.pid, getattr(signal, how))
    elif how == "lost connection":
        os.kill(_ssh_to("hostB", launch.mark), signal.SIGKILL)
    status, _, err = launch.end()
    assert launch.left() == []
    assert status == expected, err
    if how == "fail":
        assert err.splitlines()[-2:] == ["rueda: rank 2 on hostB failed with exit status 3", "last words"]
    if how == "lost connection":
        assert "rueda: the agent on hostB ended unexpectedly" in err


WITHIN = """
import json, socket, torch, rueda
from rueda.world.shared_memory import transport
transport._host = socket.gethostname  # the namespaces are on one machine
world = rueda.init()
x = torch.arange(300_000.0) + world.rank
world.all_reduce_(x)
print(json.dumps([world.transport, torch.equal(x, 4 * torch.arange(300_000.0) + 6.0)]))
"""


def test_real_hosts_have_shared_memory_within(launcher: Any, hosts: Any) -> None:
    words = ["-H", "hostA:2,hostB:2", "--ssh", hosts.ssh, "-x", "RUEDA_TRANSPORT=shared", launcher.script(WITHIN)]
    status, out, err = launcher.start(*words, command=hosts.inside(launcher.rueda)).end()
    assert status == 0, err
    assert told(out) == {rank: ["shared memory within hosts", True] for rank in range(4)}, err


SAVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    print("ready", flush=True)
    time.sleep(300)
finally:
    time.sleep(1.5)
    print("saved", os.environ["RANK"], flush=True)
"""


def test_sigterm_to_every_process_lets_workers_behind_ssh_save(launcher: Any, hosts: Any) -> None:
    """As scancel sends it: also to the ssh of each host, which must not cut the connection."""
    words = ["-H", "hostA:1,hostB:1", "--ssh", hosts.ssh, launcher.script(SAVES)]
    launch = launcher.start(*words, command=hosts.inside(launcher.rueda))
    for _ in range(2):
        launch.wait_for_line("ready")
    os.kill(_ssh_to("hostA", launch.mark), signal.SIGTERM)  # before the driver hears of it
    launch.signal_all(signal.SIGTERM)
    status, out, err = launch.end()
    assert status == 143 and "saved 0" in out and "saved 1" in out, err
    assert launch.left() == []


def _ssh_to(host: str, mark: str) -> int:
    """Find the ssh of a launch that leads to a host."""
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes().split(b"\0")
            environ = (folder / "environ").read_bytes()
        except OSError:
            continue
        if line[0] == b"ssh" and host.encode() in line and mark.encode() in environ:
            return int(folder.name)
    raise AssertionError(f"there is no ssh to {host}")
