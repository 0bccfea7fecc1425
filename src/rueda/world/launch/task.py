"""``rueda run`` as a task of srun or mpirun: each task becomes one worker.

Under ``srun -n 4 rueda run -np 4 train.py`` there are four processes of this command already. Each is replaced by the
program, with the variables that torchrun would set, in place of starting four more workers itself.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from rueda.errors import LaunchError
from rueda.world.identity import Identity, slurm_nodes
from rueda.world.launch import environment, program
from rueda.world.launch.hosts import Host
from rueda.world.launch.plan import LaunchPlan

TASK_LAUNCHERS = ("Slurm", "Open MPI", "Hydra")
"""the launchers of :func:`rueda.world.identity.identify` that start one process for each worker"""


def run_as_task(plan: LaunchPlan, identity: Identity, *, is_quiet: bool = False) -> NoReturn:
    """Replace this process, which is one of the workers, by the plan's program.

    Args:
        plan: the program and the number of workers, which must be the number of tasks.
        identity: this process's rank among the tasks.
        is_quiet: whether only rank 0 may write to standard output.
    """
    if plan.workers != identity.size:
        raise LaunchError(
            "-np",
            expected=f"{identity.size}, since {identity.launcher} started {identity.size} tasks, which are the workers",
            got=plan.workers,
            do="start as many tasks as workers, or one task for all of them",
        )
    argv = program.resolve(plan.program, module=plan.module)
    variables = {**os.environ, **task_variables(plan, identity, os.environ)}
    with suppress(AttributeError, OSError):
        sys.stdout.flush()
    if is_quiet and identity.rank != 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        os.execve(argv[0], argv, variables)
    except OSError as error:
        raise LaunchError(f"{argv[0]} cannot be started ({error.strerror}); check that it runs on its own") from None


def task_variables(plan: LaunchPlan, identity: Identity, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker that are not in the environment of its task.

    Under mpirun the worker is recognised by mpirun's own variables, and the address of rank 0 is broadcast over MPI.
    """
    found = environment.for_workers(environ, identity.local_size)
    found |= environment.python_path(environ, plan.additions.packages)
    if identity.address is not None and identity.port is not None:
        counts, node = slurm_nodes(environ, default=str(identity.local_size))
        hosts = [Host(name=socket.gethostname(), slots=count) for count in counts]
        found |= {
            "RANK": str(identity.rank), "WORLD_SIZE": str(identity.size),
            "LOCAL_RANK": str(identity.local_rank), "LOCAL_WORLD_SIZE": str(identity.local_size),
            "GROUP_RANK": str(node), "MASTER_ADDR": identity.address, "MASTER_PORT": str(identity.port),
            **plan.additions.per_worker(hosts, node, identity.local_rank, identity.rank),
        }  # fmt: skip
    return {**found, **plan.environment}
