"""Tests that need several workers: ``@workers(2)`` runs the body in that many processes.

The processes of each worker count are started once and kept for the whole session, since a start with torch costs
seconds. A test that raises on any rank fails, with that rank's traceback, and the next one gets new processes.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import inspect
import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

SECONDS = 120.0
_groups: dict[int, _Group] = {}


def workers(size: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test's body on ``size`` workers that share a process group (``rueda.world.current()``)."""

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(**arguments: Any) -> None:
            run_on_workers(size, Path(inspect.getfile(body)), body.__qualname__, arguments)

        test.__wrapped_body__ = body  # type: ignore[attr-defined]
        del test.__wrapped__
        test.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]
        return test

    return decorate


def run_on_workers(size: int, file: Path, name: str, arguments: dict[str, Any]) -> None:
    if size not in _groups:
        _groups[size] = _Group(size)
    errors = _groups[size].run(file, name, arguments)
    if errors:
        _groups.pop(size).stop()  # the ranks are no longer in step: the next test gets new ones
        rank, text = errors[0]
        raise AssertionError(f"on rank {rank} of {size}:\n{text}")


class _Group:
    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.connections: list[Connection] = []
        self.processes = []
        for rank in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, rank, size, port), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(mine)
            self.processes.append(process)
        atexit.register(self.stop)

    def run(self, file: Path, name: str, arguments: dict[str, Any]) -> list[tuple[int, str]]:
        errors = []
        for connection in self.connections:
            connection.send((str(file), name, arguments))
        waiting = {connection: rank for rank, connection in enumerate(self.connections)}
        while waiting:
            ready = wait(list(waiting), timeout=5.0 if errors else SECONDS)
            if not ready:
                ranks = sorted(waiting.values())
                errors.append((ranks[0], f"ranks {ranks} gave no answer in time"))
                break
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    error = connection.recv()
                except (EOFError, ConnectionResetError):
                    errors.append((rank, "the worker died"))
                    continue
                if error is not None:
                    errors.append((rank, error))
        return errors

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def _work(connection: Connection, rank: int, size: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
    )  # fmt: skip
    sys.path.insert(0, str(Path(__file__).parent))
    import warnings

    import rueda.world

    rueda.world.init(seed=0, timeout=60)
    warnings.simplefilter("error")
    while True:
        try:
            file, name, arguments = connection.recv()
        except EOFError:
            return
        try:
            body: Any = _load(file)
            for part in name.split("."):
                body = getattr(body, part)
            body.__wrapped_body__(**arguments)
            error = None
        except BaseException:
            error = traceback.format_exc()
        connection.send(error)


@functools.cache
def _load(file: str) -> Any:
    name = "worker_" + Path(file).stem
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
