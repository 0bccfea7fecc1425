"""The workers of one host, under torchrun's elastic agent.

Four places where torch lets a launcher put its own part:

- the rendezvous (``RendezvousHandler``): the store is already open when the agent asks, on a port that the kernel
  chose, so no other process can take the port in between;
- the logs (``LogsSpecs``): the "files" are pipes to :class:`.pump.Pump`;
- the watch (``_monitor_workers``): it sleeps until a worker ends, rather than asking ten times a second;
- the end (``_exit_barrier``): the driver says when all hosts have finished.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

from rueda.world.launch.processes import reap_orphans, signal_tree
from rueda.world.launch.pump import Pump
from rueda.world.launch.wire import STDERR, STDOUT, Sender


class Rendezvous(RendezvousHandler):
    """A rendezvous of hosts whose number and order are known."""

    def __init__(self, store: TCPStore, *, address: str, node: int, nodes: int, run: str) -> None:
        self._store, self._address, self._node, self._run = store, address, node, run
        self.nodes = nodes

    def get_backend(self) -> str:
        """Name the kind of rendezvous."""
        return "static"

    @property
    def use_agent_store(self) -> bool:
        """Workers are clients of the agent's store: none of them has to open the port."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Give the place of this host."""
        store: Store = PrefixStore(self._run, self._store)
        return RendezvousInfo(store, self._node, self.nodes, RendezvousStoreInfo(self._address, self._store.port))

    def is_closed(self) -> bool:
        """Nobody closes it."""
        return False

    def set_closed(self) -> None:
        """Nobody closes it."""

    def num_nodes_waiting(self) -> int:
        """No host comes later."""
        return 0

    def get_run_id(self) -> str:
        """Name the run."""
        return self._run

    def shutdown(self) -> bool:
        """Nothing is left to close."""
        return True


class _Pipes(LogsSpecs):
    """Logs that are pipes. torch opens a log by its path: ``/dev/fd/7`` is the path of an open pipe.

    This is also where torch shows each worker's environment before it starts them.
    """

    def __init__(self, pump: Pump, variables: Sequence[Mapping[str, str]]) -> None:
        super().__init__()
        self._pump = pump
        self._variables = variables
        self._writing: list[int] = []

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Open two pipes a worker, and add the variables of its own."""
        paths: dict[bytes, dict[int, str]] = {STDOUT: {}, STDERR: {}}
        for local_rank, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = ""
            env.update(self._variables[local_rank])
            for kind in paths:
                self._writing.append(self._pump.pipe(kind, int(env["RANK"])))
                paths[kind][local_rank] = f"/dev/fd/{self._writing[-1]}"
        nowhere = dict.fromkeys(envs, os.devnull)
        return LogsDest(stdouts=paths[STDOUT], stderrs=paths[STDERR], error_files=nowhere)

    def close(self) -> None:
        """Close this process's own ends, once the workers have theirs."""
        for descriptor in self._writing:
            os.close(descriptor)
        self._writing.clear()

    @property
    def root_log_dir(self) -> str:
        """There is no folder."""
        return os.devnull


class Workers(LocalElasticAgent):
    """The agent: starts the workers, tells the driver of every end, stops them when told to.

    Args:
        argv: what each worker executes.
        place: where the hosts meet, and this host's number among them.
        variables: for each worker of this host, by local rank, the variables that it alone gets.
        sender: the way to the driver.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        place: Rendezvous,
        variables: Sequence[Mapping[str, str]],
        sender: Sender,
    ) -> None:
        quiet_torch()
        self._pump = Pump(sender)
        self._pipes = _Pipes(self._pump, variables)
        spec = WorkerSpec(
            role="default",
            local_world_size=len(variables),
            rdzv_handler=place,
            entrypoint=argv[0],
            # torch replaces ${local_rank} and $$ in arguments; a doubled $ comes out as it went in.
            args=tuple(word.replace("$", "$$") for word in argv[1:]),
            max_restarts=0,
            monitor_interval=1e-3,  # slept before each look, and a look here lasts until something happens
        )
        super().__init__(spec, self._pipes)
        self._sender = sender
        self._several_hosts = place.nodes > 1
        self._lock = threading.Lock()  # between starting the workers and stopping them
        self._change = threading.Event()
        self._ended: set[int] = set()
        self.pids: dict[int, int] = {}  # rank: process
        self.stopping = False
        self.may_leave = threading.Event()

    def stop(self, number: int, seconds: float) -> bool:
        """Signal the workers; after ``seconds`` kill what is left. False if none has been started, nor will be."""
        with self._lock:
            self.stopping = True
            if not self.pids:
                return False
            signal_tree(self.pids.values(), number)
            self._change.set()
            self.may_leave.set()
        threading.Thread(target=self._kill, args=(seconds,), daemon=True).start()
        return True

    def _kill(self, seconds: float) -> None:
        time.sleep(seconds)
        signal_tree(self.pids.values(), signal.SIGKILL)

    def finish(self) -> None:
        """Send the rest of the output."""
        self._pump.finish()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._lock:
            if self.stopping:
                raise InterruptedError("stopped before the workers were started")
            self._pump.start()
            ids: dict[int, Any] = super()._start_workers(worker_group)
            self._pipes.close()
            self.pids = {worker.global_rank: ids[worker.local_rank] for worker in worker_group.workers}
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, self._on_signal)  # torch has set its own, which waits 30 s
        self._sender.message(say="started", pids=self.pids)
        for rank, pid in self.pids.items():
            threading.Thread(target=self._watch, args=(rank, pid), daemon=True).start()
        return ids

    def _on_signal(self, number: int, frame: object) -> None:
        threading.Thread(target=self.stop, args=(number, 5.0), daemon=True).start()

    def _watch(self, rank: int, pid: int) -> None:
        """Wait for the end of a worker, without collecting it: that is torch's part."""
        status = -int(signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):  # torch was faster, which it is only when all are stopped
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            if ended is not None:
                status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self._ended.add(rank)
        self._sender.message(say="ended", rank=rank, status=status, stopped=self.stopping)
        self._change.set()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        while not self.stopping and len(self._ended) < len(self.pids):
            self._change.wait(1.0)
            self._change.clear()
            reap_orphans(self.pids.values())
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _exit_barrier(self) -> None:
        if self._several_hosts:
            self._sender.message(say="finished")
            self.may_leave.wait()


def quiet_torch() -> None:
    """Keep torch from logging and from asking the name service: the driver tells the user what happened."""
    logging.disable(logging.CRITICAL)
    # torch asks for the full name of this host at every event, which takes seconds where no name service answers.
    setattr(socket, "getfqdn", lambda name="": name or socket.gethostname())  # noqa: B010


def run(workers: Workers, environ: Mapping[str, str]) -> None:
    """Run the workers to their end, with these variables added to their environment."""
    os.environ.update(environ)
    with contextlib.suppress(InterruptedError):
        workers.run()
