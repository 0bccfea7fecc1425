"""Start a program on N workers, on this machine or on many.

::

    driver ──stdin/stdout──► agent on this host ──► workers 0, 1      (torchrun's elastic agent)
       └─────────ssh───────► agent on server2   ──► workers 2, 3, 4

The driver (:func:`launch`) never loads torch. It starts one agent a host, tells each what to run, prints what the
workers write, decides when a failure ends the job, and leaves nothing behind. An agent is torchrun's elastic agent
as a library; when the driver is gone, in whatever way, its standard input ends and it stops its workers.

=================  =====================================================================
``hosts``          ``-H server1:4,server2:4``, host files, which host takes which ranks
``plan``           what is to be started: :class:`LaunchPlan`
``driver``         :func:`launch`: one event loop over all agents
``agent``          the process on each host; ``workers`` holds its part in torch
``pump``           workers' pipes to whole lines; ``wire`` carries them to the driver
``output``         prefixes, colours, files; ``failure`` tells which rank failed first
``remote``         ssh; ``meeting`` finds the address by which hosts reach each other
``slurm``          the same command as a batch script; ``kubernetes`` as a manifest
=================  =====================================================================
"""

from __future__ import annotations

from rueda.world.launch.driver import launch
from rueda.world.launch.environment import EnvironmentAdditions
from rueda.world.launch.hosts import Host, parse_hosts, read_hostfile, take_slots
from rueda.world.launch.output import OutputStyle, Show
from rueda.world.launch.plan import LaunchPlan

__all__ = [
    "EnvironmentAdditions", "Host", "LaunchPlan", "OutputStyle", "Show", "launch", "parse_hosts", "read_hostfile",
    "take_slots",
]  # fmt: skip
