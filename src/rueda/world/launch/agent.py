"""The agent: the process on each host that starts, monitors and stops the host's workers.

The driver starts it, directly or through ssh. It runs as long as its standard input is open: when the driver ends in
any way, even by SIGKILL or a lost connection, standard input ends and the agent stops its workers.

Phases: report to the driver; find the program; rendezvous with the other hosts; run the workers; end every process
that they left behind.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import threading
from typing import TYPE_CHECKING, BinaryIO

from rueda.errors import LaunchError
from rueda.world import instruction_sets, network
from rueda.world.authentication import KEY_VARIABLE
from rueda.world.cores import usable_cores
from rueda.world.launch import addresses, environment, processes, program
from rueda.world.launch.protocol import Message, Sender, read_message
from rueda.world.network import FIRST_ADDRESS
from rueda.world.signals import HANDLED

if TYPE_CHECKING:
    from rueda.world.launch.elastic import ElasticAgent

_STORE_SECONDS = 600.0
_SWEEP_SECONDS = 2.0


class Control:
    """Receives the driver's commands in its own thread.

    Args:
        commands: the driver's end of standard input; when it ends, the workers have ``grace`` seconds to save.
        grace: these seconds.
    """

    def __init__(self, commands: BinaryIO, grace: float) -> None:
        self._commands = commands
        self._driver_gone: Message = {"do": "stop", "signal": int(signal.SIGTERM), "seconds": grace, "last": True}
        self._lock = threading.Lock()
        self._agent: ElasticAgent | None = None
        self.rendezvous: queue.Queue[Message] = queue.Queue()  # the commands for this phase
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def watch(self, agent: ElasticAgent) -> None:
        """Apply the commands ``stop`` and ``leave`` to this agent's workers from now on."""
        with self._lock:
            self._agent = agent

    def _listen(self) -> None:
        while True:
            command = read_message(self._commands) or self._driver_gone
            with self._lock:
                if command["do"] == "stop":
                    outside = bool(command.get("from_outside"))
                    if self._agent is None or not self._agent.stop(
                        command["signal"], command["seconds"], from_outside=outside
                    ):
                        instruction_sets.end_child()
                        os._exit(0)  # no worker is running yet, and the main thread may be busy importing torch
                elif command["do"] == "save":
                    if self._agent is not None:
                        self._agent.save(command["signal"])
                elif command["do"] == "leave":
                    if self._agent is not None:
                        self._agent.may_leave.set()
                else:
                    self.rendezvous.put(command)
            if command.get("last"):
                return


def main() -> None:
    """Serve one driver; this is the entry point of the process."""
    commands, frames = os.fdopen(os.dup(0), "rb"), os.dup(1)
    # No other code in this process may read the driver's commands or write between the frames.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for number in HANDLED:  # until the workers are started, the driver decides alone what a signal means
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    sender = Sender(frames)
    plan = read_message(commands)
    if plan is None:
        return
    processes.adopt_orphans()
    try:
        if (part := plan.get("elastic")) == "store":
            from rueda.world.launch.elastic_job.store_host import serve_store

            serve_store(plan, commands, sender)
            return
        sender.message(say="hello", cores=usable_cores())
        if part:
            from rueda.world.launch.elastic_job.agent import serve_members

            argv = program.resolve(plan["program"], module=plan["module"])
            serve_members(plan, argv, worker_variables(plan, argv, sender), commands, sender)
        else:
            control = Control(commands, plan["grace"])
            argv = program.resolve(plan["program"], module=plan["module"])
            _serve(plan, argv, control, sender)
    except LaunchError as error:
        sender.message(say="refused", text=str(error))
    except Exception as error:
        sender.message(say="refused", text=f"the agent failed ({type(error).__name__}: {error})")
    sender.message(say="done")
    os._exit(0)  # without waiting for threads that still block, nor for torch's slow exit


def worker_variables(plan: Message, argv: list[str], sender: Sender) -> dict[str, str]:
    """Return the variables of all workers of this host that do not depend on how many they are."""
    extra = environment.python_path(os.environ, plan["packages"])
    if not (plan["limits_onednn"] or program.is_rueda(argv) or instruction_sets.has_gpu(os.environ)):
        extra |= instruction_sets.limits(os.environ)
        if limit := extra.get(instruction_sets.VARIABLE):
            sender.message(say="note", text=instruction_sets.told(limit))
    return extra


def _serve(plan: Message, argv: list[str], control: Control, sender: Sender) -> None:
    gc.disable()  # the import of torch creates little garbage; without collections it takes a seventh less time
    from rueda.world.launch.elastic import ElasticAgent, Rendezvous
    from rueda.world.relay import StoreGateway, StoreRelay, reach
    from rueda.world.rendezvous import local_store, tcp_store

    gc.freeze()  # imported modules are never freed, so later collections need not visit them
    gc.enable()
    extra = environment.for_workers(os.environ, plan["workers"]) | worker_variables(plan, argv, sender)
    several = plan["nodes"] > 1
    key = plan["key"].encode()
    own = first_address = None
    gateway: StoreGateway | None = None
    if plan["node"] == 0:
        store = local_store(_STORE_SECONDS)
        if several:
            gateway = StoreGateway(store.port, key)
            sender.message(say="listening", port=gateway.port, addresses=addresses.own_addresses(os.environ))
            reached = control.rendezvous.get()["addresses"]
            gateway.listen_on(reached)
            # Behind address translation the other hosts reach an address that is not this host's own.
            own = first_address = next((address for address in reached if addresses.interface_of(address)), reached[0])
    else:
        first = control.rendezvous.get()
        offered = [*first["addresses"], *(addresses.driver_address(os.environ) if first["driver"] else [])]
        link = reach(offered, first["port"], key)
        if link is None:
            raise LaunchError(
                f"this host cannot connect to {first['name']} on port {first['port']} (tried {', '.join(offered)}); "
                "allow connections between the hosts"
            )
        first_address, own = link
        sender.message(say="reached", address=first_address)
        relay = StoreRelay(first_address, first["port"], key)
        store = tcp_store("127.0.0.1", relay.port, _STORE_SECONDS)
    if own is not None and first_address is not None:
        extra |= {KEY_VARIABLE: plan["key"], FIRST_ADDRESS: first_address}
        network.exchange_at_once(os.environ)
        interface = addresses.interface_of(own)
        if interface and "GLOO_SOCKET_IFNAME" not in os.environ:
            extra["GLOO_SOCKET_IFNAME"] = interface
    else:
        network.stay_on_loopback(os.environ)
    rendezvous = Rendezvous(store, node=plan["node"], nodes=plan["nodes"], run=plan["run"])
    agent = ElasticAgent(argv, rendezvous=rendezvous, variables=plan["variables"], sender=sender)
    control.watch(agent)
    os.environ.update(extra)
    try:
        with contextlib.suppress(InterruptedError):  # stopped before the workers were started
            agent.run()
    except OSError as error:  # not a program for this machine, or too many processes
        raise LaunchError(f"{argv[0]} cannot be started ({error.strerror}); check that it runs on its own") from error
    finally:
        processes.sweep(agent.pids.values(), seconds=_SWEEP_SECONDS)
        agent.forwarder.finish()
        if gateway is not None and gateway.refused:
            sender.message(say="note", text=f"{gateway.refused}; see SECURITY.md")


if __name__ == "__main__":
    main()
