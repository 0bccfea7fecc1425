"""The plan of a launch: the program, its arguments and the hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from rueda.errors import LaunchError
from rueda.world.launch.elastic_job.settings import ElasticSettings
from rueda.world.launch.environment import EnvironmentAdditions, is_name
from rueda.world.launch.hosts import Host
from rueda.world.signals import grace_seconds


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """A program, its arguments, and the hosts that run it.

    Args:
        program: the command and its arguments: ``("train.py", "--lr", "0.1")``, ``("python", "train.py")``, or any
            other program.
        module: whether the first word is a module, as in ``python -m``.
        hosts: the hosts in rank order; ``slots`` is the number of workers on each.
        environment: variables to set for the workers, in addition to those of :mod:`.environment`.
        references: names of further variables, with the values that they have where the job is started; a file for
            Slurm or Kubernetes refers to them.
        additions: further variables that are computed for each host or worker.
        directory: the working directory on every host.
        ssh: the ssh command and its options.
        python: the interpreter on the other hosts.
        grace: the seconds that the workers have to save after a signal; by default ``RUEDA_GRACE``, else 30.
        elastic: how the number of workers may change; None for a job that ends with its first failure. In an elastic
            job ``hosts`` have all their slots, and may be empty if a program lists them.
        limits_onednn: whether the program itself limits oneDNN where needed (:mod:`rueda.world.instruction_sets`).

    >>> LaunchPlan(program=("train.py",), hosts=(Host(name="a", slots=4), Host(name="b", slots=2))).workers
    6
    """

    program: tuple[str, ...]
    module: bool = False
    hosts: tuple[Host, ...] = (Host(name="localhost"),)
    environment: Mapping[str, str] = field(default_factory=dict)
    references: tuple[str, ...] = ()
    additions: EnvironmentAdditions = field(default_factory=EnvironmentAdditions)
    directory: str = field(default_factory=os.getcwd)
    ssh: tuple[str, ...] = ("ssh",)
    python: str = sys.executable
    grace: float = field(default_factory=lambda: grace_seconds(os.environ))
    elastic: ElasticSettings | None = None
    limits_onednn: bool = False

    def __post_init__(self) -> None:
        if not self.program or not self.program[0]:
            raise LaunchError(
                "the program", expected="a script, a program or -m module", got="", do="name it after the options"
            )
        if any("\0" in word for word in self.program):
            raise LaunchError("an argument contains a NUL character, which no program can receive; remove it")
        for name in (*self.environment, *self.references):
            if not is_name(name):
                raise LaunchError(
                    "the name of a variable", expected="letters, digits and _", got=name, do="choose another"
                )
        if not self.hosts and (self.elastic is None or self.elastic.discovery is None):
            raise LaunchError("the list of hosts is empty; name at least one")
        if not self.ssh:
            raise LaunchError("--ssh", expected="a command such as ssh", got="", do="omit --ssh or give a command")

    @property
    def workers(self) -> int:
        """The number of workers on all hosts together."""
        return sum(host.slots for host in self.hosts)

    def first_rank(self, index: int) -> int:
        """Return the rank of the first worker on the host with this index."""
        return sum(host.slots for host in self.hosts[:index])
