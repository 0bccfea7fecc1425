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

from rueda.errors import LaunchError, MissingExtra, WorldError
from rueda.world.signals import exit_status

__all__ = ["WorkerError", "run"]


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
    cooldown_range: object = None,
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
        min_num_proc, max_num_proc, min_np, max_np, reset_limit, cooldown_range: elastic training, not supported yet.
        disable_cache, use_gloo, use_mpi, mpi_args: accepted without effect.

    Raises:
        WorkerError: a worker raised an exception; the error has its rank and traceback.
        LaunchError: the workers cannot be started.
    """
    from rueda.hvd.launching import HorovodrunStyle
    from rueda.hvd.runner.function_server import FunctionServer
    from rueda.hvd.runner.launch_plan import plan_job
    from rueda.world.launch import OutputOptions, launch
    from rueda.world.launch.remote import ssh_addresses

    if any(value is not None for value in (min_num_proc, max_num_proc, min_np, max_np, reset_limit)):
        raise LaunchError("elastic training is not in Rueda yet; remove min_np, max_np and reset_limit, and give np")
    interfaces = network_interfaces if network_interfaces is not None else network_interface or ()
    program = ["rueda.hvd.runner.worker"]
    plan = plan_job(
        [executable, "-u", "-m", *program] if executable else program,
        module=not executable,
        workers=num_proc or np or (None if hosts or hostfile else 1),
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
            print(f"rueda: {getattr(func, '__name__', func)} on {plan.workers} workers", file=sys.stderr)
        output = OutputOptions(folder=Path(output_filename) if output_filename else None, style=HorovodrunStyle())
        status = launch(plan, output=output)
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
