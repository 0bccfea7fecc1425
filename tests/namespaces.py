"""Hosts that are network namespaces on one bridge, with an sshd each; root on Linux can make them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import rueda

SOURCES = Path(rueda.__file__).resolve().parents[1]  # a host must import the package that is tested


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


def missing_tools() -> str | None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    for tool in ("ip", "tc", "ssh", "ssh-keygen", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed, or not on the PATH"
    if not Path("/usr/sbin/sshd").exists():
        return "sshd is not installed"
    return None


class NoHostsError(Exception):
    """Namespaces with sshd cannot be made here; the message says why."""


@contextmanager
def made_hosts(folder: Path, prefix: str) -> Iterator[Hosts]:
    """Make hostA (10.77.0.2) and hostB (10.77.0.3): network namespaces on one bridge, each with an sshd.

    A stranger's namespace (10.77.0.9) is on the same bridge.

    Raises:
        NoHostsError: they cannot be made here.
    """
    if reason := missing_tools():
        raise NoHostsError(reason)
    servers: list[subprocess.Popen[bytes]] = []
    try:
        try:
            _network(prefix)
            servers = _servers(prefix, folder)
        except (subprocess.CalledProcessError, AssertionError) as error:
            raise NoHostsError(f"network namespaces with sshd cannot be made here: {error}") from None
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
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(SOURCES)])
    known, servers = "", []
    for number, name in ((2, "a"), (3, "b")):
        address = f"10.77.0.{number}"
        config = f"Host host{name.upper()}\n  HostName {address}\n" + config
        known += f"[{address}]:2222 {key}\n"
        (folder / f"sshd_{name}").write_text(
            f"Port 2222\nListenAddress {address}\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nPermitRootLogin yes\n"
            f"PasswordAuthentication no\nMaxStartups 50\nSetEnv PYTHONPATH={path}\n"
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
