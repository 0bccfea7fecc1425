"""``horovod.run``: a Python function on N workers, its results back in rank order.

::

    import rueda.hvd

    def train(rate):
        import rueda.hvd.torch as hvd
        hvd.init()
        ...
        return accuracy

    rueda.hvd.run(train, args=(0.1,), num_proc=4)      # [0.91, 0.91, 0.91, 0.91]

The function and its arguments are pickled. With cloudpickle installed, lambdas, local functions and notebook cells
work too; without it, a function at the top of a module or of a script that guards itself by
``if __name__ == "__main__":``. The workers are started by :mod:`rueda.world.launch`, as with ``rueda run``.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rueda.errors import LaunchError, WorldError

__all__ = ["WorkerError", "run"]


def __getattr__(name: str) -> Any:
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.runner", name)


class WorkerError(WorldError, RuntimeError):
    """A worker raised, or ended without a result.

    Args:
        rank: of the worker that failed first.
        summary: the last line of its traceback.
        traceback: the whole, as text.
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
    """Call a function on N workers and give its results in rank order.

    Args:
        func: what every worker calls.
        args: its positional arguments.
        kwargs: its named arguments.
        num_proc: how many workers, also ``np``; by default all slots of the hosts, or 1 on this machine.
        slots: for hosts that name none.
        hosts: ``server1:4,server2:4``; by default this machine.
        hostfile: a host a line, ``server1 slots=4``.
        start_timeout: seconds to wait until all workers have met.
        ssh_port: of all hosts.
        ssh_identity_file: the private key.
        output_filename: a folder for ``rank.<rank>/stdout`` and ``stderr``, beside what is shown.
        verbose: say what is started.
        network_interfaces: the network cards to use, also ``network_interface``.
        executable: the interpreter of the workers.
        min_num_proc, max_num_proc, min_np, max_np, reset_limit, cooldown_range: elastic training: not yet.
        disable_cache, use_gloo, use_mpi, mpi_args: have no meaning here.

    Raises:
        WorkerError: a worker raised; it carries the rank and the text of the traceback.
        LaunchError: the workers cannot be started.
    """
    from rueda.hvd.launching import HorovodrunStyle
    from rueda.hvd.runner.jobs import plan_job
    from rueda.hvd.runner.service import Desk, pack
    from rueda.world.launch import Show, launch

    if any(value is not None for value in (min_num_proc, max_num_proc, min_np, max_np, reset_limit)):
        raise LaunchError("elastic training is not in Rueda yet; leave out min_np, max_np and reset_limit, and give np")
    cards = network_interfaces if network_interfaces is not None else network_interface or ()
    program = ["rueda.hvd.runner.task"]
    plan = plan_job(
        [executable, "-u", "-m", *program] if executable else program,
        module=not executable,
        workers=num_proc or np or (None if hosts or hostfile else 1),
        hosts=hosts,
        hostfile=hostfile,
        slots=slots,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        network_interfaces=cards.split(",") if isinstance(cards, str) else cards,
        start_timeout=start_timeout,
        python=executable,
    )
    call, main = _encode(func, tuple(args), dict(kwargs or {}))
    with Desk(pack(call, path=sys.path, main=main), remote=any(not host.is_local for host in plan.hosts)) as desk:
        from dataclasses import replace

        plan = replace(plan, environment={**plan.environment, **desk.environment})
        if verbose:
            print(f"rueda: {getattr(func, '__name__', func)} on {plan.workers} workers", file=sys.stderr)
        show = Show(folder=Path(output_filename) if output_filename else None, style=HorovodrunStyle())
        status = launch(plan, show=show)
        return _results(desk.outcomes, plan.workers, status)


def _encode(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, str | None]:
    """Pickle the call; also give the script that the workers must load, if the call names something in it."""
    from rueda.hvd.pickled import dumps

    call = dumps((func, args, kwargs), by_value=True)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    named = b"__main__" in call and b"cloudpickle" not in call
    if named and main is None:
        from rueda.errors import MissingExtra

        raise MissingExtra("cloudpickle, for a function that was typed in,", "horovod")
    return call, str(Path(main).resolve()) if named and main is not None else None


def _results(outcomes: Sequence[Any], workers: int, status: int) -> list[Any]:
    for outcome in outcomes:  # in the order in which they came: the first is the cause
        if outcome.result is None:
            raise WorkerError(outcome.rank, outcome.summary, outcome.traceback)
    if status == 130:
        raise KeyboardInterrupt
    found = {outcome.rank: outcome.result for outcome in outcomes}
    missing = [rank for rank in range(workers) if rank not in found]
    if status or missing:
        rank = missing[0] if len(missing) == 1 else None
        raise WorkerError(rank, f"it ended with exit status {status} before it gave a result")
    return [pickle.loads(found[rank]) for rank in range(workers)]
