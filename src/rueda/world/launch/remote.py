"""Start an agent: here, or on another host through the system's ssh.

ssh is used as the user has it: keys, agent, configuration, aliases. It never asks anything (``BatchMode``). Its
command line holds one constant word beside the path of the interpreter; the working directory, the environment and
the program travel over standard input, so nothing needs quoting and no value shows in the list of processes.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import subprocess
import sys

from rueda.errors import LaunchError
from rueda.world.launch.environment import forwarded
from rueda.world.launch.hosts import Host
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.wire import packet

_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15")

# A file in the working directory must not stand in for a module of the agent.
_ENTER = "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; from rueda.world.launch.agent import main; main()"

# Runs on any Python 3: takes the first packet, changes to the directory and environment, becomes the agent.
_BOOT = """
import json, os, sys
def take(count):
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            sys.exit(1)
        data += more
    return data
place = json.loads(take(int(take(10))).decode("ascii"))
os.environ.update(place["environment"])
try:
    os.chdir(place["directory"])
except OSError as error:
    sys.exit("rueda: the directory %s cannot be entered (%s)" % (place["directory"], error.strerror))
os.execv(sys.executable, [sys.executable, "-c", place["enter"]])
"""


def ssh_command(plan: LaunchPlan, host: Host, command: str) -> list[str]:
    """Build the command that runs a shell command on a host."""
    return [*plan.ssh, *_OPTIONS, "--", host.name, command]


def agent_command(python: str) -> str:
    """Give the shell command that becomes the agent; any shell can read it.

    >>> agent_command("/opt/my env/bin/python").split(" -c ")[0]
    "exec '/opt/my env/bin/python'"
    """
    boot = base64.b64encode(_BOOT.encode("ascii")).decode("ascii")
    return f"exec {shlex.quote(python)} -c 'import base64; exec(base64.b64decode(\"{boot}\"))'"


def start_agent(plan: LaunchPlan, host: Host) -> subprocess.Popen[bytes]:
    """Start the agent of a host; it waits for its part of the plan on standard input."""
    first = b""
    if host.is_local:
        command = [sys.executable, "-c", _ENTER]
        environ = {**os.environ, **plan.environment}
    else:
        command = ssh_command(plan, host, agent_command(plan.python))
        environ = dict(os.environ)
        first = packet(
            {
                "directory": plan.directory,
                "environment": {**forwarded(os.environ, plan.additions.prefixes), **plan.environment},
                "enter": _ENTER,
            }
        )
    try:
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=plan.directory if host.is_local else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C at the terminal is for the driver, which passes it on.
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be started ({error.strerror}); install it or correct --ssh") from None
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # an ssh that has failed already tells why when its output ends
        process.stdin.write(first)
    return process


def ssh_addresses(plan: LaunchPlan, host: Host) -> list[str]:
    """Give the names under which a host may be known to others: as typed, and as the ssh configuration has it."""
    name = host.name.rpartition("@")[2]
    try:
        settings = subprocess.run(
            [*plan.ssh, "-G", "--", host.name], capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        settings = ""
    configured = [line.split(" ", 1)[1] for line in settings.splitlines() if line.startswith("hostname ")]
    return [*configured, name]


def why_no_agent(plan: LaunchPlan, host: Host, status: int, words: str) -> str:
    """Tell in one line why the agent of a host did not come up.

    Args:
        plan: the plan.
        host: where it should have come up.
        status: the exit status of ssh, or of the agent.
        words: what stood on its standard error.
    """
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    last = lines[-1] if lines else f"exit status {status}"
    python = sys.executable if host.is_local else plan.python
    if "No module named" in words and "rueda" in words:
        return f"host {host.name}: Rueda is not installed for {python}; install it there, or name another with --python"
    if last.startswith("rueda: "):
        return f"host {host.name}: {last[7:]}; make it, or start from a directory that every host has"
    if host.is_local:
        return f"the agent on this host did not start ({last}); see that `{python} -c 'import torch'` works"
    if status in (126, 127):
        return f"host {host.name}: there is no {python} ({last}); install it there, or name another with --python"
    if status == 255:
        check = shlex.join([*plan.ssh, host.name, "true"])
        return f"host {host.name}: ssh failed ({last}); see that `{check}` works without a question"
    return f"host {host.name}: the agent did not start ({last}); see that `{python} -c 'import torch'` works there"
