"""A Slurm cluster of two nodes that the tests start and end: network namespaces, each with a slurmd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

NODES = {"nodea": "10.78.0.2", "nodeb": "10.78.0.3"}
_CONTROLLER = "10.78.0.1"
_TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "ip", "nsenter", "unshare")
_CONFIGURATION = """
ClusterName=rueda
SlurmctldHost=control({controller})
SlurmUser=root
SlurmctldPort=6817
SlurmdPort=6818
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdTimeout=5
MessageTimeout=5
TCPTimeout=2
KillWait=5
InactiveLimit=0
ReturnToService=2
JobRequeue=1
RebootProgram=/bin/true
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverTimeLimit=0
"""


def _missing() -> str | None:
    if not os.environ.get("RUEDA_SLURM"):
        return "these tests take three minutes; `make test-slurm` runs them"
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed; on Debian: apt-get install slurm-wlm munge iproute2"
    return None


def output(folder: Path) -> str:
    """What a job has printed so far, in all its runs."""
    file = folder / "out"
    return file.read_text() if file.exists() else ""


@dataclass
class Slurm:
    """A controller and two nodes; every process of the cluster runs in a namespace of its own network."""

    folder: Path
    prefix: str
    servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RANK", "WORLD", "OMP_"))
        }
        path = f"{Path(sys.executable).parent}:{clean['PATH']}"  # `python` in a batch script is the one of the tests
        return {**clean, "PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}

    def run(self, *words: str, folder: Path | None = None, text: str | None = None, check: bool = True) -> str:
        """Run a command beside the controller, as on a login node."""
        done = subprocess.run(
            [*self.at("control"), *words], cwd=folder or self.folder, env=self.environ,
            input=text, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def at(self, place: str) -> list[str]:
        """Give the words that run a command in a namespace; `ip netns exec` would hide the cgroups from slurmd."""
        return ["nsenter", f"--net=/run/netns/{self.prefix}{place}"]

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job: JobState, Restarts, NodeList and more."""
        words = self.run("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(
        self, condition: Callable[[], object], what: str, folder: Path | None = None, seconds: float = 120
    ) -> None:
        """Wait until something has happened; if it never does, say what the job in a folder has printed."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                printed = "" if folder is None else output(folder)
                raise AssertionError(f"{what} never came; {self.run('squeue', check=False)}\n{printed}")
            time.sleep(0.2)

    def submit(self, script: str, folder: Path) -> str:
        """Submit a batch script and return the number of the job."""
        return self.run("sbatch", "--parsable", "--output=out", folder=folder, text=script).strip()

    def start(self, place: str, *command: str) -> None:
        """Start a server in a namespace with a host name of its own."""
        enter = f'hostname {place} && mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        log = open(self.folder / f"{place}.out", "ab")  # noqa: SIM115
        self.servers[place] = subprocess.Popen(
            [*self.at(place), "unshare", "--uts", "--mount", "sh", "-c", enter, "sh", *command],
            env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        log.close()

    def start_node(self, name: str) -> None:
        subprocess.run(["ip", "-n", f"{self.prefix}{name}", "link", "set", "net0", "up"], check=True)
        self.start(name, "slurmd", "-D", "-N", name)

    def lose_node(self, name: str) -> None:
        """Lose a node as a machine is lost: its network is gone and all its processes with it."""
        subprocess.run(["ip", "-n", f"{self.prefix}{name}", "link", "set", "net0", "down"], check=True)
        self.kill(name)

    def kill(self, place: str) -> None:
        """Kill all processes of a namespace."""
        for _ in range(3):
            words = ["ip", "netns", "pids", f"{self.prefix}{place}"]
            for pid in subprocess.run(words, capture_output=True, text=True).stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
        if (server := self.servers.pop(place, None)) is not None:
            server.wait()

    def _states(self) -> list[str]:
        return self.run("sinfo", "--noheader", "--Node", "--format=%T", check=False).split()

    def all_idle(self) -> bool:
        return self._states() == ["idle"] * len(NODES)

    def none_down(self) -> bool:
        return not any(state.startswith(("down", "unk")) for state in self._states())


@contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Start munged, slurmctld and two slurmd; end them and all that they have started.

    Raises:
        RuntimeError: why there can be no cluster here.
    """
    if reason := _missing():
        raise RuntimeError(reason)
    slurm = Slurm(folder, f"slurm{os.getpid()}")
    munged: subprocess.Popen[bytes] | None = None
    try:
        try:
            _network(slurm.prefix)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"network namespaces cannot be made here: {error}") from None
        munged = _munge(folder)
        nodes = "\n".join(f"NodeName={name} NodeAddr={address} CPUs=4 State=UNKNOWN" for name, address in NODES.items())
        (folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=folder, controller=_CONTROLLER, nodes=nodes))
        names = {"localhost": "127.0.0.1", "control": _CONTROLLER, **NODES}
        (folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in names.items()))
        (folder / "state").mkdir()
        slurm.start("control", "slurmctld", "-D")
        for name in NODES:
            (folder / f"spool-{name}").mkdir()
            slurm.start_node(name)
        slurm.wait(slurm.all_idle, f"an idle cluster; see {folder}/*.log")
        yield slurm
    finally:
        for place in ("control", *NODES):
            slurm.kill(place)
            subprocess.run(["ip", "netns", "del", f"{slurm.prefix}{place}"], capture_output=True)
        if munged is not None:
            munged.kill()
            munged.wait()


def _munge(folder: Path) -> subprocess.Popen[bytes]:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    words = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    words += [f"--{name}-file={folder}/munge.{name}" for name in ("log", "pid", "seed")]
    with open(folder / "munge.out", "wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    while not (folder / "munge.socket").exists():
        assert process.poll() is None, (folder / "munge.out").read_text()
        time.sleep(0.05)
    return process


def _network(prefix: str) -> None:
    places = ("control", *NODES)
    steps = [f"ip netns add {prefix}{name}" for name in places]
    steps += [f"ip -n {prefix}{name} link set lo up" for name in places]
    hub = f"{prefix}control"
    steps += [f"ip -n {hub} link add bridge type bridge", f"ip -n {hub} addr add {_CONTROLLER}/24 dev bridge"]
    steps += [f"ip -n {hub} link set bridge up"]
    for name, address in NODES.items():
        steps += [
            f"ip -n {hub} link add to-{name} type veth peer name net0 netns {prefix}{name}",
            f"ip -n {hub} link set to-{name} master bridge up",
            f"ip -n {prefix}{name} addr add {address}/24 dev net0",
            f"ip -n {prefix}{name} link set net0 up",
        ]
    for step in steps:
        subprocess.run(step.split(), check=True, capture_output=True, timeout=10)
