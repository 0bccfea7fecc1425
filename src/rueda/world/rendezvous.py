"""The rendezvous of the workers: rank 0 serves a key-value store, and every worker registers in it.

The wait is limited: after a timeout every worker raises an error that names the missing ranks and the variable to
check. Under torchrun and ``rueda run`` an agent serves the store instead of rank 0.

Anyone who can reach the store could redirect ranks and so run code in them. Therefore it listens on the loopback
interface if all workers are on one host, and on many hosts if they have a common key: then the other hosts reach it
through an authenticated connection (:mod:`rueda.world.relay`). mpirun's workers get the key by MPI's own broadcast.
Without a key the store listens on the one address that ``MASTER_ADDR`` names, where possible, and the network must be
trusted.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from rueda.errors import WorldError
from rueda.world import mpi, network
from rueda.world.authentication import job_key, new_key
from rueda.world.identity import Identity
from rueda.world.relay import StoreGateway, StoreRelay, reach

# The server runs until the process ends, so that init() after finish() can use it again.
_stores: dict[tuple[str, int | None, str | None, int | None], Store] = {}
_mpi_key = b""
_LONGEST_PAUSE = 0.2  # seconds between two questions whether all are here


def _nothing() -> None:
    pass


def connect(identity: Identity, *, seconds: float, generation: int, check: Callable[[], None] = _nothing) -> Store:
    """Connect to rank 0's store and return it when all workers have registered.

    Args:
        identity: this worker's rank and, if the launcher set it, the address of rank 0.
        seconds: how long to wait for the others.
        generation: how many worlds this process opened before, so that a new one never reads the keys of an old one.
        check: called while this worker waits; it raises an error if there is nothing to wait for any more.

    Raises:
        WorldError: a worker is missing, or rank 0 cannot be reached, after ``seconds``.
    """
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    # The store of an agent is used again by a worker of an elastic job, whose rank changes.
    key = (identity.launcher, identity.port, identity.address, None if by_agent else identity.rank)
    if key not in _stores:
        if identity.address is not None and identity.port is not None:
            _stores[key] = _open_known(identity, identity.address, identity.port, seconds)
        else:
            _stores[key] = _open_over_mpi(identity, seconds)
    store: Store = _stores[key]
    if by_agent:
        # A restarted worker group must not read the keys of the group before it.
        store = PrefixStore(f"attempt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    store = PrefixStore(f"rueda/{generation}", store)
    _wait_for_all_ranks(store, identity, seconds, check)
    if identity.local_size < identity.size:
        _choose_interface(store, identity)
        network.exchange_at_once(os.environ)
    else:
        network.stay_on_loopback(os.environ)
    return store


def known_key() -> bytes:
    """Return the job's key: from the environment, or the one that rank 0 broadcast over MPI; empty without one."""
    return job_key(os.environ) or _mpi_key


def _open_known(identity: Identity, address: str, port: int, seconds: float) -> Store:
    """Open the store at the address that the launcher gave."""
    if identity.rank != 0:
        _resolve(address)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return _connect_to(address, port, seconds)
    if _on_one_host(identity, address):
        return _serve("127.0.0.1", port, seconds) if identity.rank == 0 else _connect_to("127.0.0.1", port, seconds)
    key = known_key()
    if identity.rank != 0:
        return _connect_to(address, port, seconds, key)
    if not key:
        return _serve(_own_address(address), port, seconds)
    store = local_store(seconds)
    try:
        StoreGateway(store.port, key, address=_own_address(address), port=port)
    except OSError as error:
        raise _cannot_listen(port, error) from None
    return store


def _on_one_host(identity: Identity, address: str) -> bool:
    """Return whether all workers are certainly on this host: every rank must come to the same answer."""
    known = identity.launcher != "torchrun" or "LOCAL_WORLD_SIZE" in os.environ
    return network.is_loopback(address) or (known and identity.local_size == identity.size)


def _own_address(name: str) -> str:
    """Return the address of this host that a name stands for; empty, which is all of them, if that is not certain.

    The own name often resolves to 127.0.1.1 on a host itself, and to another address on the other hosts.
    """
    found = network.own_address_towards(name) or ""
    return found if found in network.interfaces().values() and not network.is_loopback(found) else ""


def _serve(address: str, port: int, seconds: float) -> Store:
    try:
        return local_store(seconds, address=address, port=port)
    except (OSError, RuntimeError) as error:
        raise _cannot_listen(port, error) from None


def _cannot_listen(port: int, error: Exception) -> WorldError:
    return WorldError(f"MASTER_PORT: rank 0 cannot listen on port {port} ({_first_line(error)}); choose a free port")


def _connect_to(address: str, port: int, seconds: float, key: bytes = b"") -> Store:
    """Connect to the store at an address, through its gateway if there is a key."""
    deadline = time.monotonic() + seconds
    try:
        if key:
            while reach([address], port, key) is None:
                if time.monotonic() > deadline:
                    raise RuntimeError
                time.sleep(0.1)
            address, port = "127.0.0.1", StoreRelay(address, port, key).port
        return tcp_store(address, port, seconds)
    except (RuntimeError, ValueError):
        same = ", that all workers have the same RUEDA_JOB_KEY" if key else ""
        raise WorldError(
            f"MASTER_ADDR: expected rank 0 at {address}, port {port}, but it did not answer within {seconds:g} s; "
            f"check MASTER_ADDR and MASTER_PORT, that rank 0 runs{same}, and the firewall"
        ) from None


def _open_over_mpi(identity: Identity, seconds: float) -> Store:
    """Open the store at an address and with a key that rank 0 broadcasts over MPI."""
    global _mpi_key
    alone = identity.local_size == identity.size
    if identity.rank == 0:
        store = local_store(seconds)
        addresses, port, key = ["127.0.0.1"], store.port, new_key()
        if not alone:
            addresses = network.reachable_addresses()
            port = StoreGateway(store.port, key.encode()).port
        mpi.broadcast(json.dumps([addresses, port, key]).encode(), launcher=identity.launcher, one_host=alone)
        _mpi_key = key.encode()
        return store
    addresses, port, key = json.loads(mpi.broadcast(b"", launcher=identity.launcher, one_host=alone))
    _mpi_key = key.encode()
    if alone:
        return _connect_to("127.0.0.1", port, seconds)
    deadline = time.monotonic() + seconds
    while (found := reach(addresses, port, _mpi_key)) is None:
        if time.monotonic() > deadline:
            raise WorldError(
                f"rank 0 did not answer within {seconds:g} s at any of {', '.join(addresses)}, port {port}; "
                "set its address: mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500"
            )
        time.sleep(0.1)
    return tcp_store("127.0.0.1", StoreRelay(found[0], port, _mpi_key).port, seconds)


def local_store(seconds: float, *, address: str = "127.0.0.1", port: int = 0) -> TCPStore:
    """Serve a store on one address alone: a TCPStore by itself listens on all interfaces.

    Args:
        seconds: the time limit of each operation.
        address: an address of this host; empty for all interfaces.
        port: the port; 0 for a free one.

    Raises:
        OSError: the port is in use.
    """
    listener = socket.create_server((address, port), backlog=1024)
    port = listener.getsockname()[1]
    return TCPStore(
        address or "127.0.0.1", port, None, True, timedelta(seconds=seconds), wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def tcp_store(address: str, port: int, seconds: float) -> TCPStore:
    """Connect to a store that another process serves."""
    return TCPStore(address, port, None, False, timedelta(seconds=seconds), wait_for_workers=False)


def _resolve(address: str) -> None:
    try:
        socket.getaddrinfo(address, None)
    except OSError:
        raise WorldError(
            f"MASTER_ADDR: expected the name or address of rank 0's host, got {address!r}, which does not resolve; "
            "correct it or add the host to /etc/hosts"
        ) from None


def _wait_for_all_ranks(store: Store, identity: Identity, seconds: float, check: Callable[[], None] = _nothing) -> None:
    """Block until all ranks have registered: rank 0 waits for each of them, and the others for rank 0."""
    store.set(f"here/{identity.rank}", socket.gethostname())
    try:
        if identity.rank == 0:
            _wait(store, [f"here/{rank}" for rank in range(identity.size)], seconds, check)
            store.set("all", "here")
        else:
            _wait(store, ["all"], seconds + 5, check)  # longer than rank 0, which names the missing ranks
    except RuntimeError:
        try:
            missing = [rank for rank in range(identity.size) if not store.check([f"here/{rank}"])]
            who = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        except RuntimeError:  # rank 0 has raised its error and closed the store
            who = "unknown, since rank 0 is gone"
        raise WorldError(
            f"WORLD_SIZE: expected {identity.size} workers within {seconds:g} s, but some did not connect (ranks: "
            f"{who}); start them all, correct the number of workers, or set RUEDA_TIMEOUT to more seconds"
        ) from None


def _wait(store: Store, keys: list[str], seconds: float, check: Callable[[], None]) -> None:
    """Wait for keys of a store by asking again and again: Python handles no signal during ``store.wait``.

    Raises:
        RuntimeError: they were not set in time, or the store is gone.
    """
    begun = time.monotonic()
    while not store.check(keys):
        waited = time.monotonic() - begun
        if waited > seconds:
            raise RuntimeError("timed out")
        check()
        time.sleep(min(_LONGEST_PAUSE, 0.002 + waited / 8))


def _choose_interface(store: Store, identity: Identity) -> None:
    """Set Gloo's network interface to the one that leads to the other machines, unless the user has set one."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    first = os.environ.get(network.FIRST_ADDRESS, identity.address)
    hosts = [first] if first is not None else network.reachable_addresses()
    own = next((a for h in hosts if (a := network.own_address_towards(h)) and not network.is_loopback(a)), None)
    if identity.rank != 0:
        store.set(f"address/{identity.rank}", own or "")
    if own is None or identity.rank == 0:
        # On rank 0's machine the route to rank 0 is loopback: use the route to a worker on another machine.
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
