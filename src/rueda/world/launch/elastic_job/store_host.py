"""The process that serves the store of an elastic job, on the driver's host.

In a job of a fixed number of workers the first host serves it. Here any host may be lost, and the store must not go
with it. The port is open, and told to the driver, before torch is loaded: workers that connect earlier wait.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
from datetime import timedelta
from typing import BinaryIO

from rueda.world.launch import addresses
from rueda.world.launch.protocol import Message, Sender, read_message
from rueda.world.relay import StoreGateway

_STORE_SECONDS = 600.0


def serve_store(plan: Message, commands: BinaryIO, sender: Sender) -> None:
    """Serve a store until the driver ends.

    The driver may ask for a way in from other hosts (``open``), and for an empty store in place of the present one
    (``renew``) when all workers start anew: torch's own rendezvous would find the addresses of workers that are gone.

    Args:
        plan: the driver's first message.
        commands: where the driver's commands come from.
        sender: the connection to the driver.
    """
    port = _serve_one(sender)
    gateway: StoreGateway | None = None
    while (command := read_message(commands)) is not None:
        if command["do"] == "renew":
            port = _serve_one(sender)
            if gateway is not None:
                gateway.lead_to(port)
        elif command["do"] == "open" and gateway is None:
            gateway = StoreGateway(port, plan["key"].encode())
            sender.message(say="listening", port=gateway.port, addresses=addresses.own_addresses(os.environ))
    os._exit(0)


def _serve_one(sender: Sender) -> int:
    """Open the port of a new store, tell the driver, and serve it in another thread; return the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port: int = listener.getsockname()[1]
    sender.message(say="store", port=port)
    threading.Thread(target=_serve, args=(listener, port, sender), name="store", daemon=True).start()
    return port


_stores: list[object] = []  # the last one: the others are closed when it replaces them


def _serve(listener: socket.socket, port: int, sender: Sender) -> None:
    try:
        gc.disable()
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        gc.freeze()
        gc.enable()
        _stores[:] = [
            TCPStore(
                "127.0.0.1", port, None, True, timedelta(seconds=_STORE_SECONDS), wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        ]  # fmt: skip
    except Exception as error:
        sender.message(say="refused", text=f"the store failed ({type(error).__name__}: {error})")
        os._exit(1)
