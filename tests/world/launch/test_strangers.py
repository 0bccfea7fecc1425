"""Strangers stay outside: which sockets a job opens, and what somebody on the same network can do with them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rueda.world.authentication import KEY_VARIABLE

# All that can open a port: a process group of the script's own or of Rueda, and the engine of hvd with its groups.
ONE_HOST = """
import os, sys, time
import torch, torch.distributed as dist
import rueda
import rueda.hvd.torch as hvd
if "own" in sys.argv:
    dist.init_process_group("gloo")
world = rueda.init()
mine = torch.arange(1000, dtype=torch.float64)[world.rank :: world.size]
total = world.all_reduce((mine**2).sum())
counts = world.all_gather_object(len(mine))
if world.is_main:
    print("total", float(total), "of", sum(counts), flush=True)
hvd.init()
assert hvd.allreduce(torch.ones(300_000), op=hvd.Sum)[0] == world.size
assert hvd.broadcast_object({"a": 1}, 0) == {"a": 1}
os.write(1, b"ready\\n")  # in one piece: mpirun mixes what its processes write
while not os.path.exists("go"):
    time.sleep(0.02)
"""


def test_under_every_launcher_a_script_has_the_same_answer_and_opens_no_port_beyond_loopback(launcher: Any) -> None:
    script = launcher.script(ONE_HOST)
    jobs = {
        "rueda run": launcher.start("-np", "2", "--quiet-ranks", script, "own"),
        "alone": launcher.start(script, command=[sys.executable]),
    }
    if shutil.which("mpirun") is not None:
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
        jobs["mpirun"] = launcher.start(script, command=mpirun)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    jobs["torchrun"] = launcher.start(script, command=torchrun)
    told = {}
    for name, job in jobs.items():
        told[name] = job.wait_for_line("ready")
        # What the other launchers open themselves is theirs: their workers are looked at, their own processes are not.
        theirs = ("mpirun", "torch.distributed.run")
        ours = [pid for pid, line in job.processes().items() if not any(word in line for word in theirs)]
        open_to = listening(ours)
        assert open_to or name == "alone", name
        assert {address for address, _ in open_to if not address.startswith("127.")} == set(), (name, open_to)
    (launcher.folder / "go").touch()
    for name, job in jobs.items():
        status, out, err = job.end()
        assert status == 0, (name, err)
        lines = [line for line in (told[name] + out).splitlines() if line != "ready"]
        assert lines == ["total 332833500.0 of 1000"], (name, lines)
        assert job.left() == [], name


def listening(pids: Iterable[int], *, tables: str = "/proc/net") -> set[tuple[str, int]]:
    """Find the addresses and ports on which some processes listen, in the kernel's tables."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
            except OSError:  # closed meanwhile
                continue
    texts = [Path(tables, name).read_text() for name in ("tcp", "tcp6")]
    return {place for text in texts for place, inode in _listening(text) if inode in inodes}


def _listening(table: str) -> Iterable[tuple[tuple[str, int], str]]:
    for line in table.splitlines()[1:]:
        words = line.split()
        if words[3] == "0A":  # LISTEN
            digits, port = words[1].split(":")
            packed = b"".join(struct.pack("=I", int(digits[at : at + 8], 16)) for at in range(0, len(digits), 8))
            address = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
            yield (address.removeprefix("::ffff:").replace("::1", "127.0.0.1"), int(port, 16)), words[9]


TRAIN = """
import os, sys, time
import torch
import rueda.hvd.torch as hvd
hvd.init()
torch.manual_seed(1)
model = torch.nn.Linear(2000, 100)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), 0)
step, done = 0, False
while not done:
    optimizer.zero_grad()
    inputs = torch.full((4, 2000), float(hvd.rank() + 1) / 2000)
    model(inputs).square().mean().backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        done = hvd.broadcast_object(os.path.exists("go"), 0)
    if step == 10:
        print("ready", flush=True)
    if step >= 10:
        time.sleep(0.05)  # the strangers need the processor, too
means = hvd.allgather(model.weight.mean().reshape(1))
print("ended", hvd.rank(), step, bool((means == means[0]).all()), flush=True)
"""

PROBE = """
import secrets, socket, sys
address, port, recorded, count = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]), int(sys.argv[4])
kinds = [
    lambda: secrets.token_bytes(100),
    lambda: b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n" * 4,
    lambda: recorded,  # what a worker sent once
    lambda: recorded[:40],
    lambda: bytes(64),
    lambda: b"",
]
open_ones, heard = [], 0
for number in range(count):
    connection = socket.create_connection((address, port), timeout=30)
    heard += len(connection.recv(4096))
    try:
        connection.sendall(kinds[number % len(kinds)]())
    except OSError:
        pass
    open_ones.append(connection)  # none closes by itself
for connection in open_ones:  # the challenge is all that anybody hears
    try:
        heard += len(connection.recv(4096))
    except ConnectionResetError:
        pass
print("heard", heard, flush=True)
if "list" not in sys.argv:
    sys.exit()

from datetime import timedelta
from torch.distributed import TCPStore
try:
    store = TCPStore(address, port, None, False, timedelta(seconds=2), wait_for_workers=False)
    print("keys", store.num_keys())
    store.set("control", "overwritten")
except RuntimeError:
    print("refused", flush=True)
"""


def test_a_stranger_on_the_same_network_is_refused_counted_and_disturbs_nobody(launcher: Any, hosts: Any) -> None:
    words = ["-H", "hostA:1,hostB:1", "--ssh", hosts.ssh, launcher.script(TRAIN)]
    job = launcher.start(*words, command=hosts.inside(launcher.rueda))
    for _ in range(2):
        job.wait_for_line("ready")
    # Each port is bound to one address; the stranger sees the gateway of the store and Gloo's.
    open_to = {place: _open_beyond_loopback(hosts, place) for place in "ab"}
    assert {address for address, _ in open_to["a"]} == {"10.77.0.2"}, open_to
    assert {address for address, _ in open_to["b"]} == {"10.77.0.3"}, open_to
    (agent,) = [pid for pid, line in job.processes().items() if "agent" in line and _host(pid) == "hostA"]
    ((_, gateway),) = [place for place in listening([agent], tables=f"/proc/{agent}/net") if place in open_to["a"]]
    recorded = _recorded(hosts, job, gateway).hex()
    command = [*hosts.at("s"), sys.executable, "-c", PROBE]
    with subprocess.Popen(
        [*command, "10.77.0.2", str(gateway), recorded, "1000", "list"], stdout=subprocess.PIPE, text=True
    ) as probe:
        for address, port in (open_to["a"] | open_to["b"]) - {("10.77.0.2", gateway)}:  # the watchers of stalls
            if _challenges(hosts, port, address):
                words = [address, str(port), recorded, "100"]
                other = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120)
                assert other.stdout == "heard 3200\n", other.stderr
        assert probe.communicate(timeout=120)[0].splitlines() == ["heard 32000", "refused"]
    (launcher.folder / "go").touch()
    status, out, err = job.end()
    assert status == 0, err
    ended = [line.split() for line in out.splitlines() if "ended" in line]
    assert sorted(line[2] for line in ended) == ["0", "1"], out
    assert len({line[3] for line in ended}) == 1 and {line[4] for line in ended} == {"True"}
    (told,) = [line for line in err.splitlines() if "to the store" in line]
    found = re.fullmatch(
        r"rueda: refused ([\d,]+) connections to the store without the job's key, the last from 10\.77\.0\.9; "
        r"see SECURITY\.md", told,
    )  # fmt: skip
    assert found and int(found[1].replace(",", "")) > 1000, told
    assert job.left() == []


def test_workers_of_another_launcher_share_a_key(launcher: Any, hosts: Any) -> None:
    """As under srun: no agent relays, so rank 0 serves the gateway and each other rank its relay."""
    script = launcher.script(TRAIN)
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.77.0.2"}
    common |= {"MASTER_PORT": "29517", "RUEDA_TIMEOUT": "60"}
    python = [sys.executable, script]
    jobs = [
        launcher.start(command=[*hosts.at(place), *python], RANK=str(rank), RUEDA_JOB_KEY="secret", **common)
        for rank, place in enumerate("ab")
    ]
    late = {**common, "RUEDA_TIMEOUT": "1"}
    jobs[0].wait_for_line("ready")
    assert {address for address, _ in _open_beyond_loopback(hosts, "a")} == {"10.77.0.2"}
    assert _challenges(hosts, 29517)
    stranger = launcher.start(command=[*hosts.at("s"), *python], RANK="1", RUEDA_JOB_KEY="guessed", **late)
    status, _, err = stranger.end()
    assert status == 1
    assert "that all workers have the same RUEDA_JOB_KEY" in err.splitlines()[-1]
    (launcher.folder / "go").touch()
    assert [job.end()[0] for job in jobs] == [0, 0]


def _host(pid: int) -> str:
    """Return the name of the host on which a process runs: each host has a network of its own."""
    command = ["nsenter", "-t", str(pid), "--uts", "hostname"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.strip()


def _open_beyond_loopback(hosts: Any, place: str) -> set[tuple[str, int]]:
    """Find the listening sockets of a host, without its sshd."""
    text = subprocess.run([*hosts.at(place), "cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True)
    found = {where for where, _ in _listening(text.stdout.replace("  sl  local", "x 0 0 0\nx 0 0 0 local"))}
    return {(address, port) for address, port in found if not address.startswith("127.") and port != 2222}


def _challenges(hosts: Any, port: int, address: str = "10.77.0.2") -> bool:
    code = (
        "import socket, sys; c = socket.create_connection((sys.argv[1], int(sys.argv[2]))); c.settimeout(1)\n"
        "try: print(len(c.recv(99)))\nexcept OSError: print(0)"
    )
    command = [*hosts.at("d"), sys.executable, "-c", code, address, str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout == "32\n"


def _recorded(hosts: Any, job: Any, port: int) -> bytes:
    """Return what a worker that knows the key sends to the gateway, as an eavesdropper would record it."""
    environs = [Path(f"/proc/{pid}/environ").read_text() for pid in job.processes()]
    (key,) = {line.partition("=")[2] for text in environs for line in text.split("\0") if line.startswith(KEY_VARIABLE)}
    code = (
        "import socket, sys\nfrom rueda.world.authentication import prove\n"
        "c = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "class Recorded:\n"
        "    settimeout, recv = c.settimeout, c.recv\n"
        "    def sendall(self, data): print(data.hex()); c.sendall(data)\n"
        "prove(Recorded(), sys.stdin.read().encode(), 'store')"
    )
    command = [*hosts.at("d"), sys.executable, "-c", code, "10.77.0.2", str(port)]
    done = subprocess.run(command, input=key, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return bytes.fromhex(done.stdout)
