"""The workers of one host, run by torchrun's elastic agent as a library.

Rueda replaces four parts of that agent:

- the rendezvous (``RendezvousHandler``): the store is already open when the agent asks for it, on a port that the
  kernel chose, so that no other process can take the port in between;
- the log files (``LogsSpecs``), which are pipes to :class:`.forwarding.OutputForwarder`;
- the monitoring (``_monitor_workers``), which sleeps until a worker ends instead of polling ten times a second;
- the exit barrier (``_exit_barrier``): the driver says when all hosts have finished.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from rueda.world.launch.forwarding import OutputForwarder
from rueda.world.launch.processes import ask, reap_orphans, signal_tree
from rueda.world.launch.protocol import STDERR, STDOUT, Sender
from rueda.world.signals import HANDLED, SAVING

_SAME_SIGNAL_SECONDS = 0.2  # within which a signal that is sent to all processes of a job reaches each of them


class Rendezvous(StaticTCPRendezvous):
    """torch's rendezvous of a known number of hosts in a known order, on a store that is already open.

    The store, or the relay to the store of the first host, listens on this host's loopback interface.
    """

    def __init__(self, store: TCPStore, *, node: int, nodes: int, run: str) -> None:
        super().__init__("127.0.0.1", store.port, node, nodes, run, timeout=0)
        self._store = store


class _Pipes(LogsSpecs):
    """Pipes in place of log files. torch opens a log by its path: ``/dev/fd/7`` is the path of an open pipe.

    torch also passes each worker's environment through here before it starts the workers.
    """

    def __init__(self, forwarder: OutputForwarder, variables: Sequence[Mapping[str, str]]) -> None:
        super().__init__()
        self._forwarder = forwarder
        self._variables = variables
        self._writing: list[int] = []

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Open two pipes for each worker, and add the worker's own variables to its environment."""
        paths: dict[bytes, dict[int, str]] = {STDOUT: {}, STDERR: {}}
        for local_rank, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = ""
            env.update(self._variables[local_rank])
            for kind in paths:
                self._writing.append(self._forwarder.pipe(kind, int(env["RANK"])))
                paths[kind][local_rank] = f"/dev/fd/{self._writing[-1]}"
        nowhere = dict.fromkeys(envs, os.devnull)
        return LogsDest(stdouts=paths[STDOUT], stderrs=paths[STDERR], error_files=nowhere)

    def close(self) -> None:
        """Close this process's write ends, once the workers have theirs."""
        for descriptor in self._writing:
            os.close(descriptor)
        self._writing.clear()

    @property
    def root_log_dir(self) -> str:
        """A path that torch asks for, although there are no log files."""
        return os.devnull


class ElasticAgent(LocalElasticAgent):
    """Starts the workers of this host, reports the end of each to the driver, and stops them on demand.

    Args:
        argv: the command that each worker executes.
        rendezvous: the hosts' store, and this host's number among them.
        variables: for each worker of this host, by local rank, the variables that only this worker gets.
        sender: the connection to the driver.
    """

    def __init__(
        self, argv: Sequence[str], *, rendezvous: Rendezvous, variables: Sequence[Mapping[str, str]], sender: Sender
    ) -> None:
        quiet_torch()
        self.forwarder = OutputForwarder(sender)
        self._pipes = _Pipes(self.forwarder, variables)
        spec = WorkerSpec(
            role="default",
            local_world_size=len(variables),
            rdzv_handler=rendezvous,
            entrypoint=argv[0],
            # torch replaces ${local_rank} and $$ in arguments; a doubled $ becomes a single one again.
            args=tuple(word.replace("$", "$$") for word in argv[1:]),
            max_restarts=0,
            monitor_interval=1e-3,  # torch sleeps this long before it calls _monitor_workers, which blocks
        )
        super().__init__(spec, self._pipes)
        self._sender = sender
        self._several_hosts = rendezvous.world_size > 1
        self._lock = threading.Lock()  # held while the workers are started or signalled
        self._change = threading.Event()
        self._received: dict[int, float] = {}  # by number: when a signal last reached this process itself
        self._is_asked = False
        self._ended: set[int] = set()
        self.pids: dict[int, int] = {}  # process ids by rank
        self.stopping = False
        self.may_leave = threading.Event()

    def stop(self, number: int, seconds: float, *, from_outside: bool = False) -> bool:
        """Ask the workers to stop by a signal, and send SIGKILL after ``seconds``; a later call only adds SIGKILL.

        Args:
            number: the signal; SIGKILL ends them at once.
            seconds: how long they have to save.
            from_outside: whether the job got this signal, so that the workers may have got it as well. A signal that
                has reached this process has reached its workers too if it was sent to every process of the job, as
                ``scancel`` and systemd do; a repeat could interrupt a script that is saving. So it is repeated only
                after half of the time, for workers that have not got it.

        Returns:
            False if no worker was started or will be.
        """
        with self._lock:
            self.stopping = True
            if not self.pids:
                return False
            self._change.set()
            self.may_leave.set()
            if number == signal.SIGKILL:
                signal_tree(self.pids.values(), number)
                return True
            if self._is_asked:
                return True
            self._is_asked = True
        half = seconds / 2 if from_outside and self._is_received(number) else 0.0
        self._later(half, lambda: ask(self._running(), number))
        self._later(seconds, lambda: signal_tree(self.pids.values(), signal.SIGKILL))
        return True

    def save(self, number: int) -> None:
        """Pass on the signal by which the workers save and go on, unless it has reached all processes of the job."""
        if self.pids and not self._is_received(number) and not ask(self._running(), number):
            name = signal.Signals(number).name
            self._sender.message(say="note", text=f"{name} was not passed on: no worker handles it")

    def _is_received(self, number: int) -> bool:
        """Return whether a signal that the driver got has reached this process as well, at about the same time."""
        time.sleep(_SAME_SIGNAL_SECONDS)
        return time.monotonic() - self._received.get(number, -1e9) < 1.0 + _SAME_SIGNAL_SECONDS

    def _running(self) -> list[int]:
        return [pid for rank, pid in self.pids.items() if rank not in self._ended]

    @staticmethod
    def _later(seconds: float, action: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        timer.start()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._lock:
            if self.stopping:
                raise InterruptedError("stopped before the workers were started")
            self.forwarder.start()
            ids: dict[int, Any] = super()._start_workers(worker_group)
            self._pipes.close()
            self.pids = {worker.global_rank: ids[worker.local_rank] for worker in worker_group.workers}
            for number in (*HANDLED, signal.SIGQUIT):
                signal.signal(number, self._on_signal)  # replaces torch's handlers, which end the workers themselves
        self._sender.message(say="started", pids=self.pids)
        for rank, pid in self.pids.items():
            threading.Thread(target=self._watch, args=(rank, pid), daemon=True).start()
        return ids

    def _on_signal(self, number: int, frame: object) -> None:
        """Remember a signal that was sent to this process, and tell the driver, which decides for all hosts."""
        self._received[number] = time.monotonic()
        if number != SAVING:
            self._later(0.0, lambda: self._sender.message(say="signalled", signal=number))

    def _watch(self, rank: int, pid: int) -> None:
        """Wait for the end of a worker and report it, but leave its exit status for torch to collect."""
        status = -int(signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):  # torch collects it earlier only when it stops all workers
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            if ended is not None:
                status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self._ended.add(rank)
        self._sender.message(say="ended", rank=rank, status=status, stopped=self.stopping)
        self._change.set()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        # torch ends all workers with SIGTERM once one has failed. While the job is being stopped each worker must
        # be able to save first, as long as the driver allows: this returns when all have ended.
        while len(self._ended) < len(self.pids):
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
    """Turn off torch's logging and its name lookups: the driver tells the user what happened."""
    logging.disable(logging.CRITICAL)
    # torch looks up this host's full name at every event, which takes seconds where no name service answers.
    setattr(socket, "getfqdn", lambda name="": name or socket.gethostname())  # noqa: B010
