"""Start an agent on this host, or on another host through the system's ssh.

ssh is used as the user has configured it: keys, ssh agent, configuration, aliases. It never asks a question
(``BatchMode``). Its command line holds only the path of the interpreter and a constant program. The working directory,
the environment and the user's program are sent over standard input, so that nothing needs quoting and no value appears
in the list of processes.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from rueda.errors import LaunchError
from rueda.world.launch.environment import forwarded, outside_elastic, referenced
from rueda.world.launch.hosts import Host
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.protocol import encode
from rueda.world.signals import HANDLED

_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15")

# The agent must not import a file of the working directory in place of a module.
_ENTER = "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; from rueda.world.launch.agent import main; main()"

# Runs on any Python 3: reads one line, sets the directory and environment, and becomes the agent. The raw stream is
# read byte by byte, so that what follows the line is left for the agent. No signal stays ignored.
_BOOT = """
import json, os, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), signal.SIG_DFL)
start = json.loads(sys.stdin.buffer.raw.readline().decode("ascii"))
os.environ.update(start["environment"])
try:
    os.chdir(start["directory"])
except OSError as error:
    sys.exit("rueda: the directory %s cannot be entered (%s)" % (start["directory"], error.strerror))
os.execv(sys.executable, [sys.executable, "-c", start["code"]])
"""


def ssh_command(plan: LaunchPlan, host: Host, command: str) -> list[str]:
    """Return the command that runs a shell command on a host."""
    return [*plan.ssh, *_OPTIONS, "--", host.name, command]


class Destination(NamedTuple):
    """What a command that replaces ssh is to do: run ``command`` on ``host``, or tell the settings of that host."""

    host: str
    command: str
    asks_for_settings: bool


def destination(words: Sequence[str]) -> Destination:
    """Read the command line of :func:`ssh_command` in a program that replaces ssh (``--ssh``).

    >>> destination(["-T", "-o", "BatchMode=yes", "--", "server2", "exec true"])
    Destination(host='server2', command='exec true', asks_for_settings=False)
    """
    given = list(words)
    if "--" not in given or len(rest := given[given.index("--") + 1 :]) not in (1, 2):
        raise SystemExit("expected the command line of ssh: [OPTIONS] -- HOST [COMMAND]; give this command to --ssh")
    return Destination(rest[0], rest[1] if len(rest) == 2 else "", "-G" in given[: given.index("--")])


def agent_command(python: str) -> str:
    """Return the shell command that becomes the agent; it is valid in every shell.

    >>> agent_command("/opt/my env/bin/python").split(" -c ")[0]
    "exec '/opt/my env/bin/python'"
    """
    boot = base64.b64encode(_BOOT.encode("ascii")).decode("ascii")
    return f"exec {shlex.quote(python)} -c 'import base64; exec(base64.b64decode(\"{boot}\"))'"


def start_agent(plan: LaunchPlan, host: Host) -> subprocess.Popen[bytes]:
    """Start the agent of a host; it waits for its part of the plan on standard input."""
    local = host.is_local
    command = [sys.executable, "-c", _ENTER] if local else ssh_command(plan, host, agent_command(plan.python))
    try:
        process = subprocess.Popen(
            command,
            env={**outside_elastic(os.environ), **plan.environment} if local else None,
            cwd=plan.directory if local else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # so that Ctrl-C at the terminal reaches the driver alone, which passes it on
            preexec_fn=None if local else _ignore_signals,
        )
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be started ({error.strerror}); install it or correct --ssh") from None
    if not local:
        assert process.stdin is not None
        environment = {
            **forwarded(os.environ, plan.additions.prefixes), **plan.environment,
            **referenced(plan.references, os.environ),
        }  # fmt: skip
        with contextlib.suppress(OSError):  # if ssh has failed already, the end of its output tells why
            process.stdin.write(encode({"directory": plan.directory, "environment": environment, "code": _ENTER}))
    return process


def _ignore_signals() -> None:
    """Keep the connection when a signal is sent to every process of the job, so that the workers behind it can save."""
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)


def ssh_addresses(plan: LaunchPlan, host: Host) -> list[str]:
    """Return the names by which other hosts may know a host: that of the ssh configuration, and the one typed."""
    name = host.name.rpartition("@")[2]
    try:
        settings = subprocess.run(
            [*plan.ssh, "-G", "--", host.name], capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        settings = ""
    configured = [line.split(" ", 1)[1] for line in settings.splitlines() if line.startswith("hostname ")]
    return [*configured, name]


def why_no_agent(plan: LaunchPlan, host: Host, status: int, stderr: str) -> str:
    """Return in one line why the agent of a host did not start.

    Args:
        plan: the plan.
        host: the agent's host.
        status: the exit status of ssh, or of the agent.
        stderr: its standard error.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = lines[-1] if lines else f"exit status {status}"
    python = sys.executable if host.is_local else plan.python
    if "No module named" in stderr and "rueda" in stderr:
        return f"host {host.name}: Rueda is not installed for {python}; install it there, or name another with --python"
    if last.startswith("rueda: "):
        return f"host {host.name}: {last[7:]}; create it, or start from a directory that every host has"
    if host.is_local:
        return f"the agent on this host did not start ({last}); check that `{python} -c 'import torch'` works"
    if status in (126, 127):
        return f"host {host.name}: there is no {python} ({last}); install it there, or name another with --python"
    if status == 255:
        check = shlex.join([*plan.ssh, host.name, "true"])
        return f"host {host.name}: ssh failed ({last}); check that `{check}` works without asking a question"
    return f"host {host.name}: the agent did not start ({last}); check that `{python} -c 'import torch'` works there"
