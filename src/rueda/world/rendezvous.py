"""How the workers of a world meet: rank 0 keeps a store, the others come to it, each says that it is here.

Nobody waits for ever: after ``seconds`` every worker gets an error that says who is missing and which variable
to look at. Under torchrun's agent the store is the agent's.
"""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from rueda.errors import WorldError
from rueda.world import mpi, network
from rueda.world.identity import Identity

# The server lives as long as the process: after finish() another init() meets at the same place.
_stores: dict[tuple[str, int | None, str | None, int], Store] = {}


def meet(identity: Identity, *, seconds: float, generation: int) -> Store:
    """Connect to rank 0's store and return when all workers are there.

    Args:
        identity: who this worker is and, if the launcher said so, where rank 0 waits.
        seconds: how long to wait for the others.
        generation: counts the worlds of this process, so that a new one never reads the keys of an old one.

    Raises:
        WorldError: a worker is missing, or rank 0 cannot be reached, after ``seconds``.
    """
    key = (identity.launcher, identity.port, identity.address, identity.rank)
    if key not in _stores:
        if identity.address is not None and identity.port is not None:
            _stores[key] = _open_known(identity, identity.address, identity.port, seconds)
        else:
            _stores[key] = _open_over_mpi(identity, seconds)
    store = PrefixStore(f"rueda/{generation}", _stores[key])
    _roll_call(store, identity, seconds)
    if identity.local_size < identity.size:
        _choose_interface(store, identity)
    elif "lo" in network.interfaces():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on one machine: nothing needs to leave it
    return store


def _open_known(identity: Identity, address: str, port: int, seconds: float) -> Store:
    # torchrun's agent hosts the store, and a restarted worker group must not read its predecessor's keys.
    agent_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = identity.rank == 0 and not agent_hosts
    if not serves:
        _resolve(address)
    try:
        store: Store = tcp_store(address, port, serves, seconds)
    except (RuntimeError, ValueError) as error:
        if serves:
            raise WorldError(
                f"MASTER_PORT: rank 0 cannot listen on port {port} ({_first_line(error)}); choose a free port"
            ) from None
        raise WorldError(
            f"MASTER_ADDR: expected rank 0 at {address}, port {port}, but it did not answer within {seconds:g} s; "
            "check MASTER_ADDR and MASTER_PORT, that rank 0 runs, and the firewall"
        ) from None
    if agent_hosts:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return PrefixStore(f"attempt/{attempt}", store)
    return store


def _open_over_mpi(identity: Identity, seconds: float) -> Store:
    if identity.rank == 0:
        store = tcp_store("127.0.0.1", 0, True, seconds)
        alone = identity.local_size == identity.size
        addresses = ["127.0.0.1"] if alone else network.reachable_addresses()
        token = f"{os.getpid()}-{time.time_ns()}"
        store.set("token", token)
        mpi.broadcast(json.dumps([addresses, store.port, token]).encode(), launcher=identity.launcher)
        return store
    addresses, port, token = json.loads(mpi.broadcast(b"", launcher=identity.launcher))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for address in addresses:
            try:  # An open port is not enough: a bridge address such as Docker's exists on every machine.
                with socket.create_connection((address, port), timeout=2):
                    pass
                store = tcp_store(address, port, False, 5)
                if store.get("token").decode() == token:
                    return store
            except (OSError, RuntimeError, ValueError):
                continue
        time.sleep(0.1)
    raise WorldError(
        f"rank 0 did not answer within {seconds:g} s at any of {', '.join(addresses)}, port {port}; "
        "say where it waits: mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500"
    )


def tcp_store(address: str, port: int, serves: bool, seconds: float) -> TCPStore:
    """Open a store, on a free port if ``port`` is 0, or connect to the one that another process serves."""
    return TCPStore(address, port, None, serves, timedelta(seconds=seconds), wait_for_workers=False)


def _resolve(address: str) -> None:
    try:
        socket.getaddrinfo(address, None)
    except OSError:
        raise WorldError(
            f"MASTER_ADDR: expected the name or address of rank 0's host, got {address!r}, which does not resolve; "
            "correct it or add the host to /etc/hosts"
        ) from None


def _roll_call(store: Store, identity: Identity, seconds: float) -> None:
    """Rank 0 waits for every worker and then tells all; so the check costs one key a worker."""
    store.set(f"here/{identity.rank}", socket.gethostname())
    try:
        if identity.rank == 0:
            store.wait([f"here/{rank}" for rank in range(identity.size)], timedelta(seconds=seconds))
            store.set("all", "here")
        else:
            store.wait(["all"], timedelta(seconds=seconds + 5))  # later than rank 0, who knows who is missing
    except RuntimeError:
        try:
            missing = [rank for rank in range(identity.size) if not store.check([f"here/{rank}"])]
            who = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        except RuntimeError:  # rank 0 has given up and closed the store
            who = "unknown, since rank 0 is gone"
        raise WorldError(
            f"WORLD_SIZE: expected {identity.size} workers within {seconds:g} s, but some never came (ranks: {who}); "
            "start them all, correct the number of workers, or set RUEDA_TIMEOUT to more seconds"
        ) from None


def _choose_interface(store: Store, identity: Identity) -> None:
    """Point Gloo at the interface that leads to the other machines, unless the user has chosen one."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    hosts = [identity.address] if identity.address is not None else network.reachable_addresses()
    own = next((a for h in hosts if (a := network.own_address_towards(h)) and not network.is_loopback(a)), None)
    if identity.rank != 0:
        store.set(f"address/{identity.rank}", own or "")
    if own is None or identity.rank == 0:
        # Rank 0 and its neighbours see rank 0 over loopback: take the route to a worker elsewhere instead.
        for rank in range(identity.size - 1, 0, -1):
            other = store.get(f"address/{rank}").decode()
            if other and other not in network.interfaces().values():
                own = network.own_address_towards(other)
                break
    for name, address in network.interfaces().items():
        if address == own:
            os.environ["GLOO_SOCKET_IFNAME"] = name


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
