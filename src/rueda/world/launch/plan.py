"""What is to be started, and where."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from rueda.errors import LaunchError
from rueda.world.launch.environment import EnvironmentAdditions
from rueda.world.launch.hosts import Host


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """A program, its arguments, and the hosts that run it.

    Args:
        program: the words of the command: ``("train.py", "--lr", "0.1")``, ``("python", "train.py")``, any program.
        module: the first word is a module, as in ``python -m``.
        hosts: the hosts in rank order; ``slots`` is the number of workers on each.
        environment: variables to set for the workers, beside those that every host gets from :mod:`.environment`.
        additions: further variables that are computed for each host or worker.
        directory: the working directory, on every host.
        ssh: the words of the ssh command.
        python: the interpreter on the other hosts.
        limits_onednn: the program itself limits oneDNN where that is needed (:mod:`rueda.world.instruction_sets`).

    >>> LaunchPlan(program=("train.py",), hosts=(Host(name="a", slots=4), Host(name="b", slots=2))).workers
    6
    """

    program: tuple[str, ...]
    module: bool = False
    hosts: tuple[Host, ...] = (Host(name="localhost"),)
    environment: Mapping[str, str] = field(default_factory=dict)
    additions: EnvironmentAdditions = field(default_factory=EnvironmentAdditions)
    directory: str = field(default_factory=os.getcwd)
    ssh: tuple[str, ...] = ("ssh",)
    python: str = sys.executable
    limits_onednn: bool = False

    def __post_init__(self) -> None:
        if not self.program or not self.program[0]:
            raise LaunchError(
                "the program", expected="a script, a program or -m module", got="", do="name it after the options"
            )
        if any("\0" in word for word in self.program):
            raise LaunchError("an argument holds a NUL character, which no program can receive; remove it")
        if not self.hosts:
            raise LaunchError("no host is given; name at least one")
        if not self.ssh:
            raise LaunchError("--ssh", expected="a command such as ssh", got="", do="leave it out or name ssh")

    @property
    def workers(self) -> int:
        """How many workers there are on all hosts together."""
        return sum(host.slots for host in self.hosts)

    def first_rank(self, index: int) -> int:
        """Give the rank of the first worker on the host of that index."""
        return sum(host.slots for host in self.hosts[:index])
