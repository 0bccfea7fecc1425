"""Start a program on N workers, on this machine or on many.

::

    driver ──stdin/stdout──► agent on this host ──► workers 0, 1      (torchrun's elastic agent)
       └─────────ssh───────► agent on server2   ──► workers 2, 3, 4

The driver (:func:`launch`) never loads torch. It starts one agent on each host, sends each its part of the plan, prints
the workers' output, decides when a failure ends the job, and leaves no process behind. An agent is torchrun's elastic
agent as a library; when the driver ends in any way, the agent's standard input ends and it stops its workers.

=================  ==========================================================================
``hosts``          ``-H server1:4,server2:4``, host files, the ranks of each host
``plan``           the program and its hosts: :class:`LaunchPlan`
``driver``         :func:`launch`: one event loop over all agents
``agent``          the process on each host; ``elastic`` is its part that uses torch
``forwarding``     the workers' pipes, line by line; ``protocol`` carries them to the driver
``output``         prefixes, colours, files; ``failure`` finds the rank that failed first
``grace``          the time to save after a signal; ``stream_writer``: output whose reader may stall
``remote``         ssh; ``addresses`` finds the address by which hosts reach each other
``slurm``          the same command as a batch script; ``kubernetes`` as a manifest; ``task`` under srun or mpirun
``srun``           agents as steps of a Slurm job, in place of ssh
``kubernetes_job`` the manifest of an elastic job; ``pod`` is what its pods run, ``pod_link`` reaches them
=================  ==========================================================================
"""

from __future__ import annotations

from rueda.world.launch.driver import launch
from rueda.world.launch.environment import EnvironmentAdditions
from rueda.world.launch.hosts import Host, parse_hosts, read_hostfile, take_slots
from rueda.world.launch.output import OutputOptions, OutputStyle
from rueda.world.launch.plan import LaunchPlan

__all__ = [
    "EnvironmentAdditions", "Host", "LaunchPlan", "OutputOptions", "OutputStyle", "launch", "parse_hosts",
    "read_hostfile", "take_slots",
]  # fmt: skip
