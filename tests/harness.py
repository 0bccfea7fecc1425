"""Tests that need several workers: ``@workers(2)`` runs the body in that many processes.

The processes of each worker count are started once and kept for the whole session, since a start with torch costs
seconds. A server process that has imported torch, and done nothing else, forks them; another one for each framework
(``framework="tensorflow"``), which has imported that as well but not initialised it, and has one thread. A test that
raises on any rank fails, with that rank's traceback, and the next one gets new processes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib.util
import inspect
import multiprocessing
import multiprocessing.forkserver
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

SECONDS = 1200.0 if os.environ.get("RUEDA_EVERY_FORM") else 120.0  # a test of every combination takes minutes
QUICK_START = str(Path(__file__).parent / "startup")  # on PYTHONPATH: torch is imported in two thirds of the time
PRELOADED = ["rueda.world.world", "rueda.train.loop", "rueda.optim", "rueda.nn", "torch.nn.parallel", "pytest"]
PRELOADED += ["torch._dynamo"]  # torch's optimizers import it at their first step: 1.3 s of each worker
PRELOADED += ["rueda.hvd.torch", "rueda.check.audit.watch.observer"]  # one list, since the first test starts the server
FRAMEWORKS: dict[str, tuple[dict[str, str], list[str]]] = {  # the environment and the imports of their server
    "tensorflow": ({"KERAS_BACKEND": "tensorflow"}, [*PRELOADED, "tensorflow", "keras"]),
    "tf_keras": ({"TF_USE_LEGACY_KERAS": "1"}, [*PRELOADED, "tensorflow", "tf_keras"]),
    "keras-torch": ({"KERAS_BACKEND": "torch"}, [*PRELOADED, "keras"]),
    "keras-jax": ({"KERAS_BACKEND": "jax"}, [*PRELOADED, "keras"]),
    "jax": ({}, [*PRELOADED, "jax", "optax"]),
    "hugging-face": ({"TOKENIZERS_PARALLELISM": "false"}, [*PRELOADED, "datasets", "transformers", "webdataset"]),
}
ONE_THREAD = {
    "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}  # fmt: skip
_groups: dict[tuple[int, str, str], _Group] = {}


def workers(
    size: int, *, impostor: str = "", framework: str = "", before: Callable[[], None] = lambda: None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test's body on ``size`` workers that share a process group (``rueda.world.current()``).

    ``impostor`` gives them devices that do not exist (see :mod:`gpu.bench`); ``framework`` is a key of ``FRAMEWORKS``;
    ``before`` runs in the test process.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(**arguments: Any) -> None:
            before()
            file = Path(inspect.getfile(body))
            run_on_workers(size, file, body.__qualname__, arguments, impostor=impostor, framework=framework)

        test.__wrapped_body__ = body  # type: ignore[attr-defined]
        del test.__wrapped__
        test.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]
        return test

    return decorate


def run_on_workers(
    size: int, file: Path, name: str, arguments: dict[str, Any], *, impostor: str = "", framework: str = ""
) -> None:
    key = (size, impostor, framework)
    if key not in _groups:
        _groups[key] = _Group(*key)
    errors = _groups[key].run(file, name, arguments)
    if errors:
        _groups.pop(key).stop()  # the ranks are no longer in step: the next test gets new ones
        rank, text = errors[0]
        raise AssertionError(f"on rank {rank} of {size}:\n{text}")


class _Group:
    def __init__(self, size: int, impostor: str, framework: str) -> None:
        context: Any = multiprocessing.get_context("spawn" if impostor else "forkserver")
        if not impostor:  # an impostor must be there before torch
            context.set_forkserver_preload(PRELOADED)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.connections: list[Connection] = []
        self.processes = []
        for rank in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, rank, size, port, impostor), daemon=True)
            with _forked_by(framework):
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


@functools.cache
def _server(framework: str) -> multiprocessing.forkserver.ForkServer:
    """Start the process that forks the workers of a framework."""
    environment, imports = FRAMEWORKS[framework]
    server = multiprocessing.forkserver.ForkServer()
    server.set_forkserver_preload(imports)
    before = dict(os.environ)
    os.environ.update(ONE_THREAD | environment)
    try:
        server.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return server


@contextlib.contextmanager
def _forked_by(framework: str) -> Iterator[None]:
    """Let a framework's server fork the processes that are started meanwhile; multiprocessing knows only its own."""
    own = multiprocessing.forkserver.connect_to_new_process
    if framework:
        multiprocessing.forkserver.connect_to_new_process = _server(framework).connect_to_new_process
    try:
        yield
    finally:
        multiprocessing.forkserver.connect_to_new_process = own


def end_loaders_soon() -> None:
    """Let a DataLoader whose iterator is collected in a cycle not wait 5 s for each of its processes."""
    import torch.utils.data._utils

    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2  # type: ignore[assignment]


def _work(connection: Connection, rank: int, size: int, port: int, impostor: str) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
    )  # fmt: skip
    sys.path.insert(0, str(Path(__file__).parent))
    import warnings

    if impostor:
        os.environ["IMPOSTOR"] = impostor
        import gpu.impostor  # noqa: F401  (before torch)
    import rueda.world

    gc.freeze()  # imported modules are never freed, so collections need not visit them
    end_loaders_soon()
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
