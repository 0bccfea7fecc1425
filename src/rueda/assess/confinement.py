"""What a process may no longer do once it has confined itself: another user, no other files, limits of resources.

A worker calls :func:`confine` before it loads torch, when it still has one thread: Landlock applies to the thread that
asks for it and to those that it starts. Nothing of this can be taken back by the process. Each measure that holds is
told in a phrase, which the assessment shows: what a system cannot deny is not claimed.

==================  ==========================================================================================
another user        if the grader is root, the script runs as a user without a name and without any files
Landlock            (Linux 5.13 and later) reads only Python, the system and its own folder, writes only its own
                    folder; since 6.12 it signals no process but its own
no network          root gives the job a network of its own, in which only loopback exists; other users deny
                    connections to the ports below 1024 (Linux 6.7)
limits              processor time, size of files, memory, number of processes
==================  ==========================================================================================
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_NO_NEW_PRIVILEGES, _DUMPABLE, _KEEP_CAPABILITIES, _AMBIENT = 38, 4, 8, 47  # prctl
_READ_CAPABILITY = 1 << 2  # CAP_DAC_READ_SEARCH
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # landlock's system calls, the same on all architectures
_READ = 0b1101  # execute, read a file, read a folder
_WRITE = 0b1_1111_1110_0010  # write, remove and make files of all kinds
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_CONNECT = 1 << 1
_SCOPES = 0b11  # abstract sockets, signals
_FIRST_USER, _NUM_USERS = 61184, 4096  # systemd's range of users that exist for the time of a process only
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/dev", "/opt", "/run/systemd/resolve")
_GIGABYTE = 1 << 30
FILES = "Landlock"
"""the first word of the phrase that says: files of the grader cannot be read"""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one worker.

    Args:
        processor_seconds: processor time of all its threads.
        file_bytes: size of a file.
        memory_bytes: memory for data.
        processes: processes and threads of the user; beside those that there are, if it stays the same one.
    """

    processor_seconds: int
    file_bytes: int = _GIGABYTE // 4
    memory_bytes: int = 8 * _GIGABYTE
    processes: int = 1024


def spare_user(number: int) -> int:
    """Return a user that nobody is, for the job of a number.

    >>> spare_user(0), spare_user(4096)
    (61184, 61184)
    """
    return _FIRST_USER + number % _NUM_USERS


def confine(*, user: int | None, readable: Iterable[Path], writable: Iterable[Path], limits: Limits) -> list[str]:
    """Confine this process for good; return a phrase for each measure that holds.

    Args:
        user: the user and group to become; None: stay.
        readable: folders that may be read, beside Python's and the system's.
        writable: folders that may be written.
        limits: resources.
    """
    held = [_limit(limits, of_user=user is not None)]
    _libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    allowed = [*readable, *map(Path, sys.path), Path(sys.prefix), Path(sys.base_prefix), *map(Path, _SYSTEM)]
    landlock = _landlock(allowed, [*writable, Path("/dev/shm"), Path("/dev/null")], ports=not _is_alone())
    if user is not None and (phrase := _change_user(user, confined=bool(landlock))):
        held.append(phrase)
    return [*held, *landlock, *(["no network"] if _is_alone() else [])]


def leave_network() -> bool:
    """Give this thread, and the processes that it starts, a network of their own; return whether that was possible."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux") or _libc().unshare(_NEW_NETWORK):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:  # `ip link set lo up`
        fcntl.ioctl(found, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
    return True


def _is_alone() -> bool:
    """Return whether this process sees no network but loopback."""
    with suppress(OSError):
        return [name for _, name in socket.if_nameindex()] == ["lo"]
    return False


def _limit(limits: Limits, *, of_user: bool) -> str:
    wanted = {
        resource.RLIMIT_CPU: limits.processor_seconds, resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_DATA: limits.memory_bytes, resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: limits.processes + (0 if of_user else _num_threads(os.getuid())),
    }  # fmt: skip
    for name, most in wanted.items():
        hard = resource.getrlimit(name)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(name, (value, value))
    memory = limits.memory_bytes // _GIGABYTE
    return f"own session, {limits.processor_seconds:,} s of processor time and {memory} GiB a worker"


def _num_threads(user: int) -> int:
    """Return how many threads a user has now, which the limit counts."""
    found = 0
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found += len(os.listdir(one / "task")) if one.stat().st_uid == user else 0
    return found


def _change_user(user: int, *, confined: bool) -> str:
    """Become another user; return the phrase that says so, or nothing.

    Where that user could not read Python, as where it is installed in root's own folder, the right to read is kept if
    Landlock confines it.
    """
    readable = _can_read(user, [Path(os.__file__), Path(__file__), Path(sys.executable)])
    if not (readable or confined):
        return ""
    libc = _libc()
    libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kept = 0 if readable else _READ_CAPABILITY
    refused = libc.capset(struct.pack("Ii", 0x20080522, 0), struct.pack("6I", kept, kept, kept, 0, 0, 0))
    if refused:
        raise OSError(ctypes.get_errno(), "cannot give up the rights of root")
    if kept:
        libc.prctl(_AMBIENT, 2, _READ_CAPABILITY.bit_length() - 1, 0, 0)  # for programs that it starts, such as Python
    libc.prctl(_DUMPABLE, 1, 0, 0, 0)  # so that it may read its own files in /proc
    return f"user {user}, who owns nothing but the script's folder"


def _can_read(user: int, files: list[Path]) -> bool:
    """Ask a child process that is the other user."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            os._exit(0 if all(os.access(one, os.R_OK) for one in files) else 1)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _landlock(readable: Iterable[Path], writable: Iterable[Path], *, ports: bool) -> list[str]:
    """Allow these folders and nothing else; return what holds, nothing if the system has no Landlock."""
    libc = _libc()
    libc.syscall.restype = ctypes.c_long
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1) if sys.platform.startswith("linux") else -1
    if version < 1:
        return []
    write = _WRITE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    network = _CONNECT if ports and version >= 4 else 0
    scopes = _SCOPES if version >= 6 else 0
    attributes = struct.pack("QQQ", _READ | write, network, scopes)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        return []
    try:
        for paths, access in ((readable, _READ), (writable, _READ | write)):
            for path in {one for one in paths if one.exists()}:
                _allow(libc, rules, path, access)
        for port in range(1024, 65536) if network else ():
            libc.syscall(_ADD, rules, 2, struct.pack("QQ", _CONNECT, port), 0)
        if libc.syscall(_RESTRICT, rules, 0):
            return []
    finally:
        os.close(rules)
    held = [f"{FILES} {version}: reads Python, the system and its own folder, writes its own folder"]
    held += ["signals its own processes only"] if scopes else []
    return held + (["no connection to ports below 1024"] if network else [])


def _allow(libc: ctypes.CDLL, rules: int, path: Path, access: int) -> None:
    if not path.is_dir():
        access &= 0b100_0000_0000_0111  # of a file: execute, write, read, truncate
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        libc.syscall(_ADD, rules, 1, struct.pack("=Qi", access, descriptor), 0)
    finally:
        os.close(descriptor)
