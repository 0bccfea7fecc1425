"""Real launches: `rueda run` as a process, and hosts that are network namespaces with an sshd each."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# As the installed command does it: the working directory is not a place of modules.
RUEDA = [sys.executable, "-c", "import sys; sys.path.remove(''); from rueda.cli import main; main()", "run"]


def marked(mark: str) -> dict[int, str]:
    """Find the living processes whose environment holds a mark, and their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text(errors="replace")
                if stat.rpartition(")")[2].split()[0] != "Z" and mark.encode() in (folder / "environ").read_bytes():
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(folder.name)] = line
            except OSError:
                continue
    return found


@dataclass
class Started:
    """A launch, with the mark that all its processes carry."""

    process: subprocess.Popen[str]
    mark: str

    def end(self, timeout: float = 120) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def end_quietly(self, timeout: float = 120) -> tuple[int, str, list[str]]:
        """End it, and give the lines of standard error without the warning on a machine of few cores."""
        status, out, err = self.end(timeout)
        return status, out, [line for line in err.splitlines() if not line.endswith("which they share")]

    def processes(self) -> dict[int, str]:
        """Give the command lines of all its living processes, on any host."""
        return marked(self.mark)

    def left(self, seconds: float = 8.0) -> list[str]:
        """Give the processes that are still there, the driver aside; waits for those that are on their way out."""
        deadline = time.monotonic() + seconds
        while (living := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return list(living.values())

    def signal_all(self, number: int) -> None:
        """Send a signal to every process of the job, as scancel and systemd do."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_until_output_is_full(self) -> None:
        """Wait until the pipe of standard output, which nobody reads, takes no more.

        How many bytes fit depends on how the writes fall on the pipe's pages and on the kernel's limits for a user,
        so the pipe itself is asked whether one may write to it.
        """
        assert self.process.stdout is not None
        deadline = time.monotonic() + 60
        pipe = os.open(f"/proc/self/fd/{self.process.stdout.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            while select.select([], [pipe], [], 0)[1]:
                assert time.monotonic() < deadline, "the output is never full"
                time.sleep(0.05)
        finally:
            os.close(pipe)

    def wait_for_line(self, text: str) -> str:
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if text in line:
                return seen
        raise AssertionError(f"{text!r} never came: {seen}")


@dataclass
class Launcher:
    """Starts commands, and ends what a failed test leaves."""

    folder: Path
    rueda: list[str] = field(default_factory=lambda: list(RUEDA))
    started: list[Started] = field(default_factory=list)

    def script(self, text: str, name: str = "work.py") -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, *words: str, command: list[str] | None = None, **environment: str) -> Started:
        mark = uuid.uuid4().hex
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMP_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "SLURM_"))
        }
        process = subprocess.Popen(
            [*(RUEDA if command is None else command), *words],
            cwd=self.folder,
            env={**environ, "RUEDA_TEST_MARK": mark, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a process group as a shell would make, to which Ctrl-C goes
        )
        self.started.append(Started(process, mark))
        return self.started[-1]

    def run(self, *words: str, command: list[str] | None = None, **environment: str) -> tuple[int, str, str]:
        return self.start(*words, command=command, **environment).end()

    def close(self) -> None:
        for one in self.started:
            if one.process.poll() is None:
                os.killpg(one.process.pid, signal.SIGKILL)
                one.process.wait()
            for pid in marked(one.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for stream in (one.process.stdout, one.process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    folder = tmp_path / "a folder"
    folder.mkdir()
    one = Launcher(folder)
    yield one
    one.close()


@pytest.fixture
def pretend_ssh(tmp_path: Path) -> str:
    """An ssh that stays here: every host is this machine. It shows how the command line would arrive."""
    path = tmp_path / "pretend-ssh"
    path.write_text(
        "#!/bin/sh\n"
        'case " $* " in *" -G "*) exit 0;; esac\n'
        'while [ "$1" != "--" ]; do shift; done\n'
        'case "$2" in nowhere*) echo "ssh: Could not resolve hostname $2" >&2; exit 255;; esac\n'
        "echo Welcome to this host\n"  # as a talkative login shell would
        'exec env -i SSH_CONNECTION="127.0.0.1 1 127.0.0.1 2" /bin/sh -c "$3"\n'
    )
    path.chmod(0o755)
    return str(path)


@dataclass
class Hosts:
    """Two hosts, a third place from which they are driven, and a fourth on the same network that is a stranger's."""

    config: Path
    prefix: str

    @property
    def ssh(self) -> str:
        return f"ssh -F {self.config}"

    def inside(self, command: list[str]) -> list[str]:
        """Run a command at the driver's place, which has a name of its own."""
        named = 'hostname hostD && exec "$@"'
        return [*self.at("d"), "unshare", "--uts", "sh", "-c", named, "sh", *command]

    def at(self, place: str) -> list[str]:
        """Give the words that run a command in the network of a, b, d (the driver) or s (the stranger)."""
        return ["ip", "netns", "exec", f"{self.prefix}{place}"]


def _missing() -> str | None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    for tool in ("ip", "ssh", "ssh-keygen", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if not Path("/usr/sbin/sshd").exists():
        return "sshd is not installed"
    return None


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Make hostA (10.77.0.2) and hostB (10.77.0.3): network namespaces on one bridge, each with an sshd.

    A stranger's namespace (10.77.0.9) is on the same bridge.
    """
    if reason := _missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    prefix = f"rueda{os.getpid()}"
    servers: list[subprocess.Popen[bytes]] = []
    try:
        try:
            _network(prefix)
            servers = _servers(prefix, folder)
        except (subprocess.CalledProcessError, AssertionError) as error:
            pytest.skip(f"network namespaces with sshd cannot be made here: {error}")
        yield Hosts(folder / "config", prefix)
    finally:
        for server in servers:
            server.kill()
            server.wait()
        for name in "abds":
            subprocess.run(["ip", "netns", "del", f"{prefix}{name}"], capture_output=True)


def _network(prefix: str) -> None:
    place = f"{prefix}d"
    steps = [f"ip netns add {prefix}{name}" for name in "abds"]
    steps += [f"ip -n {prefix}{name} link set lo up" for name in "abds"]
    steps += [f"ip -n {place} link add bridge type bridge", f"ip -n {place} addr add 10.77.0.1/24 dev bridge"]
    steps += [f"ip -n {place} link set bridge up"]
    for number, name in ((2, "a"), (3, "b"), (9, "s")):
        steps += [
            f"ip -n {place} link add to-{name} type veth peer name net0 netns {prefix}{name}",
            f"ip -n {place} link set to-{name} master bridge up",
            f"ip -n {prefix}{name} addr add 10.77.0.{number}/24 dev net0",
            f"ip -n {prefix}{name} link set net0 up",
        ]
    for step in steps:
        subprocess.run(step.split(), check=True, capture_output=True, timeout=10)


def _servers(prefix: str, folder: Path) -> list[subprocess.Popen[bytes]]:
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, capture_output=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    config = (
        f"Host *\n  User root\n  Port 2222\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    known, servers = "", []
    for number, name in ((2, "a"), (3, "b")):
        address = f"10.77.0.{number}"
        config = f"Host host{name.upper()}\n  HostName {address}\n" + config
        known += f"[{address}]:2222 {key}\n"
        (folder / f"sshd_{name}").write_text(
            f"Port 2222\nListenAddress {address}\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nPermitRootLogin yes\n"
            "PasswordAuthentication no\nMaxStartups 50\n"
        )
        start = f"hostname host{name.upper()} && exec /usr/sbin/sshd -D -e -f {folder}/sshd_{name}"
        log = open(folder / f"sshd_{name}.log", "wb")  # noqa: SIM115
        command = ["ip", "netns", "exec", f"{prefix}{name}", "unshare", "--uts", "sh", "-c", start]
        servers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        log.close()
    (folder / "known_hosts").write_text(known)
    (folder / "config").write_text(config)
    for name in ("hostA", "hostB"):
        probe = ["ip", "netns", "exec", f"{prefix}d", "ssh", "-F", str(folder / "config"), "-o", "BatchMode=yes", name]
        for _ in range(50):
            if (answer := subprocess.run([*probe, "true"], capture_output=True, timeout=20)).returncode == 0:
                break
            time.sleep(0.1)
        assert answer.returncode == 0, answer.stderr.decode()
    return servers
