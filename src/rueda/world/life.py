"""Opening and closing the process group: :func:`init`, :func:`finish`, and :func:`current` for the open world."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from dataclasses import replace
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist

from rueda.errors import WorldError
from rueda.world import instruction_sets, malloc, numa, rendezvous, seeds
from rueda.world.compiler_import import spare_compiler
from rueda.world.device import choose_backend, choose_device, choose_threads, claim_device
from rueda.world.elastic import broken, membership, sockets
from rueda.world.elastic.link import opened as elastic_link
from rueda.world.identity import Identity, identify
from rueda.world.idle_threads import wait_at_exit, wait_for_idle_threads
from rueda.world.shared_memory import world_group
from rueda.world.stall import watcher
from rueda.world.stall.flight_recorder import group_timeout, torch_variables
from rueda.world.stall.limits import read_limits
from rueda.world.variables import read_number
from rueda.world.world import World

DEFAULT_TIMEOUT_SECONDS = 120.0

_current: World | None = None
_generation = 0
_num_adopted = 0


def init(*, seed: int | None = None, device: str | None = None, timeout: float | None = None) -> World:
    """Identify this worker, connect to the others, and prepare this process for training.

    It works under ``rueda run``, torchrun, mpirun (Open MPI, MPICH, Intel MPI), Slurm's srun, or without a launcher:
    then the world is this one process and no port is opened. A second call, also one after :func:`rueda.fit`, does not
    connect again: it returns the open world, and seeds again if a seed is given. If the script has already created a
    process group, that group is used, and :func:`finish` does not destroy it.

    A CPU that advertises AMX but cannot execute it is detected, and AMX is disabled
    (:mod:`rueda.world.instruction_sets`).

    Args:
        seed: seed of the model's initialisation, the same on all ranks (see :mod:`rueda.world.seeds`).
        device: ``cpu``, ``cuda``, ``xpu`` or ``mps``; by default ``RUEDA_DEVICE``, or the best that is available.
        timeout: seconds to wait for the other workers; by default ``RUEDA_TIMEOUT``, or 120.

    Raises:
        WorldError: the environment is inconsistent, or not all workers connected in time.
    """
    world = open_world(seed=seed, device=device, timeout=timeout)
    if world.device.type == "cpu":
        instruction_sets.protect(speak=world.is_main)
    return world


def open_world(*, seed: int | None = None, device: str | None = None, timeout: float | None = None) -> World:
    """Do what :func:`init` does except for the AMX check, which a training does itself once its precision is known.

    Phases: identify, tune (start-up, and threads and malloc of a CPU worker), choose the device, connect, seed.

    Args:
        seed: as for :func:`init`.
        device: as for :func:`init`.
        timeout: as for :func:`init`.
    """
    if _current is not None:
        return _reopened(_current, seed, device)
    if membership.is_pending():
        from rueda.world.elastic.reforming import join

        return join(seed=seed, device=device)
    return _open(seed=seed, device=device, seconds=_timeout(timeout))


def _open(*, seed: int | None, device: str | None, seconds: float) -> World:
    global _current, _generation, _num_adopted
    # Identify.
    adopted = dist.is_available() and dist.is_initialized()
    identity = adopted_identity() if adopted else identify(os.environ)
    # Tune.
    malloc.tune()
    spare_compiler()
    torch.set_num_threads(choose_threads(identity))
    # Choose the device.
    chosen = choose_device(identity, device, adopted=adopted)
    if adopted:
        wait_at_exit()
    else:
        numa.bind(identity, chosen)
    # Connect.
    limits = read_limits(os.environ)
    shared = None
    if identity.size > 1 and not adopted:
        store = rendezvous.connect(identity, seconds=seconds, generation=_generation, check=broken.raise_if_broken)
        claim_device(store, identity, chosen)
        backend = choose_backend(chosen)
        if "nccl" in backend:
            os.environ.update(torch_variables(limits, os.environ))
        elastic, hook = membership.is_elastic(), sys.excepthook
        with sockets.recorded() if elastic else contextlib.nullcontext():
            dist.init_process_group(
                backend,
                store=store,
                rank=identity.rank,
                world_size=identity.size,
                # A member of an elastic job may be lost at this moment, and those that go on must not wait for it.
                timeout=timedelta(seconds=seconds) if elastic else group_timeout(limits, os.environ),
                device_id=chosen if chosen.index is not None else None,
            )
        atexit.register(finish)
        _forget_after_fork()
        _generation += 1
        if elastic:
            sys.excepthook = hook  # torch has put the rank of this generation before each line, which may change
            dist.distributed_c10d._set_pg_timeout(group_timeout(limits, os.environ))
        if chosen.type == "cpu":
            shared = world_group.open_group(store, identity.rank, identity.size, seconds, broken.error)
    if identity.size > 1:
        _num_adopted += adopted  # the store of a new process group is new, that of an adopted one is used again
        watcher.start(
            dist.distributed_c10d._get_default_store(), identity.rank, identity.size,
            local=identity.local_size == identity.size, limits=limits, number=_num_adopted if adopted else 0,
            give_up=_give_up,
        )  # fmt: skip
    if shared is not None:
        watcher.watch(world_group.SharedCollectives(shared, limits, _give_up))
    # Seed.
    if seed is not None:
        seeds.seed_model(seed)
    _current = World(identity=identity, device=chosen, seed=seed)
    return _current


def _give_up(text: str) -> None:
    """End a stall: this process ends, or, if it can survive, its collectives fail."""
    link = elastic_link()
    if link is None or not link.registered:
        watcher.end_process(text)
    broken.break_world(text)


@cache
def _forget_after_fork() -> None:
    """Let a forked process end without destroying the process group of its parent; registered only once."""
    os.register_at_fork(after_in_child=lambda: atexit.unregister(finish))


def _reopened(world: World, seed: int | None, device: str | None) -> World:
    """Apply the arguments of a second :func:`init` to the world that is open."""
    global _current
    if device is not None and device != world.device.type:
        raise WorldError(
            "device", expected=f"{world.device.type}, which is in use", got=device, do="call finish() first"
        )
    if seed is not None:
        seeds.seed_model(seed)
        _current = world = replace(world, seed=seed)
    return world


def finish() -> None:
    """Destroy the process group that :func:`init` created; it also runs at exit, and may be called repeatedly."""
    global _current
    opened_here = _current is not None and _current.identity.launcher != "torch.distributed"
    _current = None
    atexit.unregister(finish)
    watcher.stop()
    world_group.close_group()
    if opened_here and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        wait_for_idle_threads()
    sockets.forget()


def abandon() -> None:
    """Close the world without waiting for the others: collectives that are under way fail, here and on the others.

    For a worker of an elastic job whose world is broken (:mod:`rueda.world.elastic`).
    """
    global _current
    _current = None
    atexit.unregister(finish)
    broken.break_world("this worker has left the world")
    watcher.stop()
    world_group.close_group()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def reopen(former: World | None, *, seconds: float, seed: int | None = None, device: str | None = None) -> World:
    """Open the world that the environment describes now, in place of one that was closed.

    Args:
        former: the closed world, whose device and seed are kept; the random numbers of this process go on.
        seconds: how long to wait for the others.
        seed: without a former world: as for :func:`init`.
        device: without a former world: as for :func:`init`.
    """
    global _current, _generation
    _generation = 0  # fresh members have opened none; the store's keys begin with the number of the generation
    if former is None:
        return _open(seed=seed, device=device, seconds=seconds)
    _current = replace(_open(seed=None, device=former.device.type, seconds=seconds), seed=former.seed)
    return _current


def current() -> World:
    """Return the open world; without :func:`init`, a world of one worker.

    Raises:
        WorldError: a launcher started several workers, but :func:`init` was not called. (Otherwise every worker would
            silently train alone on the same data.)
    """
    if _current is not None:
        return _current
    identity = identify(os.environ)
    if identity.size > 1:
        raise WorldError(
            f"{identity.launcher} started {identity.size} workers, but this one is not connected to the others; "
            "call rueda.init() first"
        )
    return World()


def is_open() -> bool:
    """Return whether :func:`init` has been called and :func:`finish` has not been called since."""
    return _current is not None


def adopted_identity() -> Identity:
    """Return the rank and size in the process group that the script created itself."""
    told = identify(os.environ)
    size = dist.get_world_size()
    if told.size != size:
        told = Identity(rank=dist.get_rank(), size=size)
    return replace(told, rank=dist.get_rank(), launcher="torch.distributed")


def _timeout(given: float | None) -> float:
    value = given if given is not None else os.environ.get("RUEDA_TIMEOUT") or DEFAULT_TIMEOUT_SECONDS
    return read_number("RUEDA_TIMEOUT", value, lambda seconds: seconds > 0, expected="a positive number of seconds")
