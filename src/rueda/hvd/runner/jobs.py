"""What ``horovod.run`` and ``horovodrun`` have in common: from their arguments to a launch plan."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rueda.errors import LaunchError
from rueda.hvd.launching import environment_additions
from rueda.world.launch import Host, LaunchPlan, parse_hosts, read_hostfile, take_slots


def plan_job(
    program: Sequence[str],
    *,
    workers: int | None,
    hosts: str | None = None,
    hostfile: str | Path | None = None,
    discovery_script: str | None = None,
    slots: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    network_interfaces: Sequence[str] = (),
    start_timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    module: bool = False,
    python: str | None = None,
) -> LaunchPlan:
    """Make the plan of a job, from what horovodrun takes.

    Args:
        program: the words of the command.
        workers: how many; None: as many as the hosts have slots.
        hosts: ``server1:4,server2:4``; by default this host.
        hostfile: a host a line, ``server1 slots=4``.
        discovery_script: a program that prints a host a line; asked once.
        slots: for hosts that name none.
        ssh_port: of all hosts.
        ssh_identity_file: the private key.
        network_interfaces: the network cards to use, such as ``eth0``.
        start_timeout: seconds to wait for all workers to meet.
        environment: further variables.
        module: the first word of the program is a module.
        python: the interpreter on other hosts.

    >>> plan = plan_job(["train.py"], workers=3, hosts="a,b:1", slots=2, ssh_port=2222, network_interfaces=["eth1"])
    >>> plan.hosts, plan.ssh
    ((Host(name='a', slots=2), Host(name='b', slots=1)), ('ssh', '-p', '2222'))
    >>> plan.environment["GLOO_SOCKET_IFNAME"]
    'eth1'
    """
    named = [name for name, value in (("hosts", hosts), ("host file", hostfile), ("script", discovery_script)) if value]
    if len(named) > 1:
        raise LaunchError(f"both {named[0]} and {named[1]} name the hosts; give one of them")
    each = 1 if slots is None else slots
    if hosts:
        listed = parse_hosts(hosts, slots=each)
    elif hostfile:
        listed = read_hostfile(hostfile, slots=each)
    elif discovery_script:
        listed = parse_hosts(",".join(_discover(discovery_script)), slots=each)
    elif workers is None:
        raise LaunchError("the number of workers is missing; give -np, as in `rueda horovodrun -np 4 python train.py`")
    else:
        listed = [Host(name="localhost", slots=max(1, workers))]
    ssh = ["ssh"]
    if ssh_port is not None:
        ssh += ["-p", str(ssh_port)]
    if ssh_identity_file is not None:
        ssh += ["-i", ssh_identity_file]
    variables: dict[str, str] = {}
    if network_interfaces:
        cards = ",".join(network_interfaces)
        variables = {
            "GLOO_SOCKET_IFNAME": cards,
            "NCCL_SOCKET_IFNAME": cards,
            "HOROVOD_GLOO_IFACE": cards.split(",")[0],
        }
    patience = str(start_timeout) if start_timeout is not None else os.environ.get("HOROVOD_START_TIMEOUT")
    if patience is not None and (start_timeout is not None or "RUEDA_TIMEOUT" not in os.environ):
        variables["RUEDA_TIMEOUT"] = patience
    variables |= environment or {}
    return LaunchPlan(
        program=tuple(program),
        module=module,
        hosts=tuple(take_slots(listed, workers)),
        environment=variables,
        additions=environment_additions({**os.environ, **variables}),
        ssh=tuple(ssh),
        python=python or sys.executable,
    )


def _discover(script: str) -> list[str]:
    try:
        done = subprocess.run([os.path.abspath(script)], text=True, capture_output=True)
    except OSError as error:
        raise LaunchError(f"the script {script} cannot be started ({error.strerror}); make it executable") from None
    hosts = done.stdout.split()
    if done.returncode or not hosts:
        raise LaunchError(
            f"the script {script} named no host (exit status {done.returncode}); it must print a host a line"
        )
    return hosts
