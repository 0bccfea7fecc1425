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

    The driver may ask for a way in from other hosts (``open``).

    Args:
        plan: the driver's first message.
        commands: where the driver's commands come from.
        sender: the connection to the driver.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = listener.getsockname()[1]
    sender.message(say="store", port=port)
    threading.Thread(target=_serve, args=(listener, port, sender), name="store", daemon=True).start()
    gateway: StoreGateway | None = None
    while (command := read_message(commands)) is not None:
        if command["do"] == "open" and gateway is None:
            gateway = StoreGateway(port, plan["key"].encode())
            sender.message(say="listening", port=gateway.port, addresses=addresses.own_addresses(os.environ))
        elif command["do"] == "refused" and gateway is not None and gateway.refused:
            sender.message(say="note", text=f"{gateway.refused}; see SECURITY.md")
    os._exit(0)


def _serve(listener: socket.socket, port: int, sender: Sender) -> None:
    try:
        gc.disable()
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        gc.freeze()
        gc.enable()
        store = TCPStore(
            "127.0.0.1", port, None, True, timedelta(seconds=_STORE_SECONDS), wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
    except Exception as error:
        sender.message(say="refused", text=f"the store failed ({type(error).__name__}: {error})")
        os._exit(1)
    sender.message(say="serving")
    threading.Event().wait()
    del store
