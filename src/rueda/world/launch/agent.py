"""The process on each host that starts, watches and stops its workers.

It is started by the driver, directly or through ssh, and lives as long as its standard input is open: when the driver
ends in whatever way, even by SIGKILL or a cut cable, the input ends and the workers are stopped.

Phases: greet the driver; look for the program; meet the other hosts; run the workers; leave nothing behind.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rueda.errors import LaunchError
from rueda.world import instruction_sets
from rueda.world.cores import usable_cores
from rueda.world.launch import environment, meeting, processes, program
from rueda.world.launch.wire import Message, Sender, read_packet

if TYPE_CHECKING:
    from rueda.world.launch.workers import Workers

_STORE_SECONDS = 600.0
_SWEEP_SECONDS = 2.0
_NVIDIA = ("/dev/nvidia0", "/proc/driver/nvidia")
_DRIVER_GONE: Message = {"do": "stop", "signal": int(signal.SIGTERM), "seconds": 5.0, "last": True}


class Control:
    """What the driver orders, read in a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._workers: Workers | None = None
        self.orders: queue.Queue[Message] = queue.Queue()
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def guard(self, workers: Workers) -> None:
        """From now on an order to stop is for these workers."""
        with self._lock:
            self._workers = workers

    def _listen(self) -> None:
        while True:
            order = read_packet(self._descriptor) or _DRIVER_GONE
            if order["do"] == "stop":
                with self._lock:
                    if self._workers is None or not self._workers.stop(order["signal"], order["seconds"]):
                        instruction_sets.end_child()
                        os._exit(0)  # nothing is running yet, and the main thread may be deep in torch
            elif order["do"] == "leave":
                with self._lock:
                    if self._workers is not None:
                        self._workers.may_leave.set()
            else:
                self.orders.put(order)
            if order.get("last"):
                return


def main() -> None:
    """Serve one driver; the entry point of the process."""
    orders, frames = os.dup(0), os.dup(1)
    # Nobody but this module may read the orders or write between the frames.
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    sender = Sender(frames)
    plan = read_packet(orders)
    if plan is None:
        return
    control = Control(orders)
    processes.adopt_orphans()
    sender.message(say="hello", cores=usable_cores())
    try:
        argv = program.resolve(plan["program"], module=plan["module"])
        _serve(plan, argv, control, sender)
    except LaunchError as error:
        sender.message(say="refused", text=str(error))
    except Exception as error:
        sender.message(say="broken", text=f"{type(error).__name__}: {error}")
    sender.message(say="done")
    # The threads that still wait, and torch's long way out, are of no use to anybody.
    os._exit(0)


def _has_gpu(environ: Mapping[str, str]) -> bool:
    """Say whether the workers of this host compute on an NVIDIA GPU, as far as is known without torch."""
    if wanted := environ.get("RUEDA_DEVICE"):
        return wanted == "cuda"
    return environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and any(map(os.path.exists, _NVIDIA))


def _serve(plan: Message, argv: list[str], control: Control, sender: Sender) -> None:
    from rueda.world.launch import workers as elastic
    from rueda.world.rendezvous import tcp_store

    extra = environment.for_workers(os.environ, plan["workers"])
    extra |= environment.python_path(os.environ, plan["packages"])
    if not (plan["limits_onednn"] or program.is_rueda(argv) or _has_gpu(os.environ)):
        extra |= instruction_sets.limits(os.environ)
        if limit := extra.get(instruction_sets.VARIABLE):
            sender.message(say="note", text=instruction_sets.told(limit))
    several = plan["nodes"] > 1
    if plan["node"] == 0:
        store = tcp_store("127.0.0.1", 0, True, _STORE_SECONDS)
        own = address = "127.0.0.1"
        if several:
            sender.message(say="listening", port=store.port, addresses=meeting.own_addresses(os.environ))
            reached = control.orders.get()["address"]
            if meeting.card_of(reached):  # not so behind address translation
                own = address = reached
    else:
        meet = control.orders.get()
        offered = [*meet["addresses"], *(meeting.driver_address(os.environ) if meet["driver"] else [])]
        link = meeting.reach(offered, meet["port"])
        if link is None:
            sender.message(say="unreachable", tried=offered, port=meet["port"])
            return
        address, own = link
        sender.message(say="reached", address=address)
        store = tcp_store(address, meet["port"], False, _STORE_SECONDS)
    card = meeting.card_of(own)
    if several and card and "GLOO_SOCKET_IFNAME" not in os.environ:
        extra["GLOO_SOCKET_IFNAME"] = card
    place = elastic.Rendezvous(store, address=address, node=plan["node"], nodes=plan["nodes"], run=plan["run"])
    workers = elastic.Workers(argv, place=place, variables=plan["variables"], sender=sender)
    control.guard(workers)
    try:
        elastic.run(workers, extra)
    except OSError as error:  # not a program for this machine, or too many processes
        raise LaunchError(f"{argv[0]} cannot be started ({error.strerror}); see that it runs by itself") from error
    finally:
        processes.sweep(workers.pids.values(), seconds=_SWEEP_SECONDS)
        workers.finish()


if __name__ == "__main__":
    main()
