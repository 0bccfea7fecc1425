"""The launch plan of ``rueda run``, ``rueda horovodrun`` and ``horovod.run``, from their arguments."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rueda.errors import LaunchError
from rueda.hvd.launching import environment_additions
from rueda.hvd.legacy_keras import variables as legacy_keras_variables
from rueda.world.launch import Host, LaunchPlan, parse_hosts, read_hostfile, take_slots
from rueda.world.launch.driver import MOST_WORKERS
from rueda.world.launch.elastic_job.discovery import discover
from rueda.world.launch.elastic_job.settings import ElasticSettings


def plan_job(
    program: Sequence[str],
    *,
    workers: int | None,
    hosts: str | None = None,
    hostfile: str | Path | None = None,
    discovery_script: str | None = None,
    slots: int | None = None,
    ssh: str = "ssh",
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    network_interfaces: Sequence[str] = (),
    start_timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    references: Sequence[str] = (),
    module: bool = False,
    python: str | None = None,
    legacy_keras: bool = False,
    elastic: bool = False,
    min_workers: int | None = None,
    max_workers: int | None = None,
    restarts: int | None = None,
    timeout: float | None = None,
    elastic_timeout: float | None = None,
    cooldown: tuple[float, float] | None = None,
) -> LaunchPlan:
    """Return the launch plan of a job.

    Args:
        program: the command and its arguments.
        workers: the number of workers; None: as many as the hosts have slots.
        hosts: ``server1:4,server2:4``; by default this host.
        hostfile: a file with one host per line, ``server1 slots=4``.
        discovery_script: a program that prints one host per line; it is run once; in an elastic job every second.
        slots: the slots of hosts that are listed without a number.
        ssh: the ssh command, with options if needed.
        ssh_port: the ssh port of all hosts.
        ssh_identity_file: the private key for ssh.
        network_interfaces: the network interfaces to use, such as ``eth0`` or ``eth0,eth1``.
        start_timeout: the seconds to wait for all workers to start; by default ``HOROVOD_START_TIMEOUT``.
        environment: further variables.
        references: names of further variables that the workers get with the values that they have here.
        module: whether the first word of the program is a module.
        python: the interpreter on other hosts.
        legacy_keras: run scripts for Keras 2 and tensorflow_addons (:mod:`rueda.hvd.legacy_keras`).
        elastic: whether the number of workers may change; any of the following arguments implies it
            (:class:`rueda.world.launch.elastic_job.settings.ElasticSettings` explains them).
        min_workers: the least number of workers; by default 1.
        max_workers: the largest number; by default ``workers``, else as many as the hosts have slots.
        restarts: how many failures are survived; None for any number.
        timeout: seconds after which a host or worker that does not answer is given up.
        elastic_timeout: seconds to wait for hosts while there are too few workers.
        cooldown: the shortest and longest seconds for which a host that fails repeatedly is not used.

    >>> plan = plan_job(["train.py"], workers=3, hosts="a,b:1", slots=2, ssh_port=2222, network_interfaces=["eth1"])
    >>> plan.hosts, plan.ssh
    ((Host(name='a', slots=2), Host(name='b', slots=1)), ('ssh', '-p', '2222'))
    >>> plan.environment["GLOO_SOCKET_IFNAME"]
    'eth1'
    """
    sources = {"hosts": hosts, "hostfile": hostfile, "host-discovery-script": discovery_script}
    given = [name for name, value in sources.items() if value]
    if len(given) > 1:
        raise LaunchError(f"{given[0]} and {given[1]} both list the hosts; give one of them")
    default = 1 if slots is None else slots
    limits = (min_workers, max_workers, restarts, timeout, elastic_timeout, cooldown)
    elastic = elastic or any(value is not None for value in limits)
    listed: list[Host] = []
    if hosts:
        listed = parse_hosts(hosts, slots=default)
    elif hostfile:
        listed = read_hostfile(hostfile, slots=default)
    elif discovery_script:
        listed = [] if elastic else _discovered(discovery_script, default)
    elif elastic and (max_workers or workers):
        listed = [Host(name="localhost", slots=max(1, max_workers or 0, workers or 0))]
    elif workers is None:
        raise LaunchError("the number of workers is missing; give it with -np, as in `-np 4`")
    else:
        listed = [Host(name="localhost", slots=max(1, workers))]
    try:
        ssh_command = shlex.split(ssh)
    except ValueError:
        raise LaunchError("--ssh", expected="a command", got=ssh, do="close its quotation marks") from None
    if ssh_port is not None:
        ssh_command += ["-p", str(ssh_port)]
    if ssh_identity_file is not None:
        ssh_command += ["-i", ssh_identity_file]
    variables: dict[str, str] = {}
    if network_interfaces:
        interfaces = ",".join(network_interfaces)
        variables = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), interfaces)
        variables["HOROVOD_GLOO_IFACE"] = interfaces.split(",")[0]
    starting = str(start_timeout) if start_timeout is not None else os.environ.get("HOROVOD_START_TIMEOUT")
    if starting is not None and (start_timeout is not None or "RUEDA_TIMEOUT" not in os.environ):
        variables["RUEDA_TIMEOUT"] = starting
    variables |= environment or {}
    if legacy_keras:
        variables |= legacy_keras_variables({**os.environ, **variables})
    settings: ElasticSettings | None = None
    if elastic:
        most = _most_workers(workers, min_workers, max_workers, listed)
        chosen = {"timeout": timeout, "wait": elastic_timeout, "cooldown": cooldown}
        settings = ElasticSettings(
            least=1 if min_workers is None else min_workers, most=most, wanted=workers, restarts=restarts,
            discovery=discovery_script, slots=default,
            **{name: value for name, value in chosen.items() if value is not None},  # type: ignore[arg-type]
        )  # fmt: skip
    return LaunchPlan(
        program=tuple(program),
        module=module,
        hosts=tuple(listed if elastic else take_slots(listed, workers)),
        elastic=settings,
        environment=variables,
        references=tuple(references),
        additions=environment_additions({**os.environ, **variables}),
        ssh=tuple(ssh_command),
        python=python or sys.executable,
    )


def _most_workers(workers: int | None, least: int | None, most: int | None, listed: Sequence[Host]) -> int:
    """Return the largest number of workers of an elastic job.

    Raises:
        LaunchError: it is less than the least number; the error names the option that was given.
    """
    slots = sum(host.slots for host in listed)
    for name, number in (("--max-np", most), ("-np", workers), ("the slots of all hosts", slots or None)):
        if number is None:
            continue
        if number < 1:
            raise LaunchError(name, expected="1 or more", got=number, do="correct it")
        if least is not None and number < least:
            do = f"raise {'them' if name.startswith('the') else 'it'} or lower --min-np"
            raise LaunchError(name, expected=f"at least --min-np, {least}", got=number, do=do)
        return number
    return MOST_WORKERS


def elastic_limits(
    workers: int | None,
    least: int | None,
    most: int | None,
    restarts: int | None,
    cooldown: Sequence[float] | None,
    timeout: float | None = None,
    discovery_script: str | None = None,
    *,
    has_hosts: bool,
) -> dict[str, Any]:
    """Return the arguments of :func:`plan_job` for Horovod's elastic options; none of them if none was given.

    Args:
        workers: ``-np``.
        least: ``--min-np``; by default ``-np``, as in Horovod.
        most: ``--max-np``; by default all slots of the hosts that were named or are discovered.
        restarts: ``--reset-limit``.
        cooldown: ``--blacklist-cooldown-range``.
        timeout: ``--elastic-timeout``.
        discovery_script: ``--host-discovery-script``.
        has_hosts: whether hosts were named.

    >>> elastic_limits(2, None, None, None, None, has_hosts=False)
    {}
    >>> found = elastic_limits(2, None, 4, None, None, has_hosts=False)
    >>> found["min_workers"], found["max_workers"]
    (2, 4)
    """
    if all(value is None for value in (least, most, restarts, cooldown, timeout, discovery_script)):
        return {}
    named = has_hosts or discovery_script is not None
    return {
        "elastic": True,
        "min_workers": least if least is not None else workers,
        "max_workers": most if most is not None or not named else MOST_WORKERS,
        "restarts": restarts,
        "elastic_timeout": timeout,
        "cooldown": None if cooldown is None else (float(cooldown[0]), float(cooldown[1])),
        "discovery_script": discovery_script,
    }


def _discovered(script: str, slots: int) -> list[Host]:
    found = discover(script, slots=slots)
    if not found:
        raise LaunchError(f"the script {script} named no host (exit status 0); it must print one host per line")
    return found
