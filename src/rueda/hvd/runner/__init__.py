"""``horovod.run``: call a Python function on N workers and return the results in rank order.

::

    import rueda.hvd

    def train(rate):
        import rueda.hvd.torch as hvd
        hvd.init()
        ...
        return accuracy

    rueda.hvd.run(train, args=(0.1,), num_proc=4)      # [0.91, 0.91, 0.91, 0.91]

The function and its arguments are pickled. With cloudpickle installed, lambdas, local functions and notebook cells
work too. Without it, the function must be defined at the top level of a module, or of a script that is protected by
``if __name__ == "__main__":``. The workers are started by :mod:`rueda.world.launch`, as with ``rueda run``.
"""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rueda.errors import MissingExtra, WorldError
from rueda.world.signals import exit_status

__all__ = ["WorkerError", "run"]
GIVES_UP = "the elastic job ends"
"""begins the message of the other workers when a job ends"""


def __getattr__(name: str) -> Any:
    if name == "_HorovodArgs":
        from rueda.hvd.runner.launch import HorovodArgs

        return HorovodArgs
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.runner", name)


class WorkerError(WorldError, RuntimeError):
    """A worker raised an exception, or ended without a result.

    Args:
        rank: the rank of the worker that failed first.
        summary: the last line of its traceback.
        traceback: the whole traceback as text.
    """

    def __init__(self, rank: int | None, summary: str, traceback: str = "") -> None:
        who = "a worker" if rank is None else f"rank {rank}"
        super().__init__(f"{who} failed: {summary}" + (f"\n\nOn {who}:\n{traceback}" if traceback else ""))
        self.rank, self.summary, self.traceback = rank, summary, traceback


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[float] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    network_interface: str | None = None,
) -> list[Any]:
    """Call a function on N workers and return its results in rank order.

    Args:
        func: the function that every worker calls.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: the number of workers, also ``np``; by default all slots of the hosts, or 1 on this machine.
        slots: the slots of hosts that are listed without a number.
        hosts: ``server1:4,server2:4``; by default this machine.
        hostfile: a file with one host per line, ``server1 slots=4``.
        start_timeout: the seconds to wait for all workers to start.
        ssh_port: the ssh port of all hosts.
        ssh_identity_file: the private key for ssh.
        output_filename: a folder for ``rank.N/stdout`` and ``rank.N/stderr``; the output is shown as well.
        verbose: print what is started.
        network_interfaces: the network interfaces to use, also ``network_interface``.
        executable: the Python interpreter of the workers.
        min_num_proc: the job is elastic and goes on after a failure with at least so many workers; also ``min_np``.
        max_num_proc: the most workers of an elastic job, also ``max_np``; by default all slots of the hosts.
        reset_limit: how many failures an elastic job survives; by default any number.
        cooldown_range: the least and most seconds for which a host that fails repeatedly is not used.
        disable_cache, use_gloo, use_mpi, mpi_args: accepted without effect.

    Raises:
        WorkerError: a worker raised an exception; the error has its rank and traceback.
        LaunchError: the workers cannot be started.
    """
    from rueda.hvd.launching import HorovodrunStyle
    from rueda.hvd.runner.function_server import FunctionServer
    from rueda.hvd.runner.launch_plan import elastic_limits, plan_job
    from rueda.world.launch import OutputOptions, launch
    from rueda.world.launch.remote import ssh_addresses

    workers, least, most = num_proc or np, min_num_proc or min_np, max_num_proc or max_np
    limits = elastic_limits(workers, least, most, reset_limit, cooldown_range, has_hosts=bool(hosts or hostfile))
    interfaces = network_interfaces if network_interfaces is not None else network_interface or ()
    program = ["rueda.hvd.runner.worker"]
    plan = plan_job(
        [executable, "-u", "-m", *program] if executable else program,
        module=not executable,
        workers=workers or (None if hosts or hostfile or limits else 1),
        **limits,
        hosts=hosts,
        hostfile=hostfile,
        slots=slots,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        network_interfaces=[interfaces] if isinstance(interfaces, str) else interfaces,
        start_timeout=start_timeout,
        python=executable,
    )
    call = _encode(func, tuple(args), dict(kwargs or {}))
    others = [ssh_addresses(plan, host) for host in plan.hosts if not host.is_local]
    with FunctionServer(call, hosts=others) as server:
        plan = replace(plan, environment={**plan.environment, **server.environment})
        if verbose:
            number = plan.workers if plan.elastic is None else f"{plan.elastic.least} to {plan.elastic.most}"
            print(f"rueda: {getattr(func, '__name__', func)} on {number} workers", file=sys.stderr)
        output = OutputOptions(folder=Path(output_filename) if output_filename else None, style=HorovodrunStyle())
        status = launch(plan, output=output)
        if plan.elastic is not None:
            return _elastic_results(server.outcomes, status)
        return _results(server.outcomes, plan.workers, status)


def _encode(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Pickle the call, the module path, and the script that workers must load if the call refers to it by name."""
    from rueda.hvd.pickled import dumps

    call = dumps((func, args, kwargs), by_value=True)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    named = b"__main__" in call and b"cloudpickle" not in call
    if named and main is None:
        raise MissingExtra("cloudpickle, for a function that was defined interactively,", "horovod")
    return pickle.dumps((call, sys.path, str(Path(main).resolve()) if named and main is not None else None))


def _results(outcomes: Sequence[Any], workers: int, status: int) -> list[Any]:
    for outcome in outcomes:  # in the order in which they arrived: the first failure is the cause
        if outcome.result is None:
            raise WorkerError(outcome.rank, outcome.summary, outcome.traceback)
    if status == exit_status(signal.SIGINT):
        raise KeyboardInterrupt
    found = {outcome.rank: outcome.result for outcome in outcomes}
    missing = [rank for rank in range(workers) if rank not in found]
    if status or missing:
        rank = missing[0] if len(missing) == 1 else None
        raise WorkerError(rank, f"it ended with exit status {status} before it returned a result")
    return [pickle.loads(found[rank]) for rank in range(workers)]


def _elastic_results(outcomes: Sequence[Any], status: int) -> list[Any]:
    """Return the results of the workers that reached the end; failures that the job has survived do not count."""
    if status == exit_status(signal.SIGINT):
        raise KeyboardInterrupt
    found = {outcome.rank: outcome.result for outcome in outcomes if outcome.result is not None}
    if status or not found:
        failed = [outcome for outcome in outcomes if outcome.result is None]
        # The others learn that the job has ended after the one whose failure ended it.
        causes = [outcome for outcome in failed if GIVES_UP not in outcome.summary] or failed
        if causes:
            raise WorkerError(causes[-1].rank, causes[-1].summary, causes[-1].traceback)
        raise WorkerError(None, f"the job ended with exit status {status} before a worker returned a result")
    return [pickle.loads(found[rank]) for rank in sorted(found)]
