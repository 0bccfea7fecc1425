"""The life of a world: :func:`init` opens it, :func:`finish` closes it, :func:`current` finds it."""

from __future__ import annotations

import atexit
import os
from dataclasses import replace

import torch
import torch.distributed as dist

from rueda.errors import WorldError
from rueda.world import instruction_sets, malloc, rendezvous, seeds
from rueda.world.device import choose_backend, choose_device, choose_threads
from rueda.world.identity import Identity, identify
from rueda.world.idle_threads import wait_for_idle_threads
from rueda.world.world import World

DEFAULT_TIMEOUT_SECONDS = 120.0

_current: World | None = None
_generation = 0


def init(*, seed: int | None = None, device: str | None = None, timeout: float | None = None) -> World:
    """Find out who this worker is, meet the others, and get ready to compute.

    Works under ``rueda run``, torchrun, mpirun (Open MPI, MPICH, Intel MPI), Slurm's srun, or with no launcher at
    all: then the world is this one process and no port is opened. Called again, it returns the same world. A script
    that made its own process group keeps it.

    A CPU that advertises AMX and cannot run it is found out, and protected from
    (:mod:`rueda.world.instruction_sets`).

    Args:
        seed: seeds the model's initialisation, the same on all ranks (the rule: :mod:`rueda.world.seeds`).
        device: ``cpu``, ``cuda`` or ``mps`` instead of the best one there is; also ``RUEDA_DEVICE``.
        timeout: seconds to wait for the other workers; also ``RUEDA_TIMEOUT``; 120 by default.

    Raises:
        WorldError: the environment contradicts itself, or not all workers came in time.
    """
    world = open_world(seed=seed, device=device, timeout=timeout)
    if world.device.type == "cpu":
        instruction_sets.protect(speak=world.is_main)
    return world


def open_world(*, seed: int | None = None, device: str | None = None, timeout: float | None = None) -> World:
    """Do what :func:`init` does, for a program that protects itself when it knows its precision.

    Phases: identify, tune (threads and malloc of a CPU worker), pin the device, meet, seed.
    """
    global _current, _generation
    if _current is not None:
        return _current
    # Identify.
    adopted = dist.is_available() and dist.is_initialized()
    identity = adopted_identity() if adopted else identify(os.environ)
    # Tune.
    malloc.tune()
    torch.set_num_threads(choose_threads(identity))
    # Pin the device.
    chosen = choose_device(identity, device)
    # Meet.
    if identity.size > 1 and not adopted:
        store = rendezvous.meet(identity, seconds=_timeout(timeout), generation=_generation)
        dist.init_process_group(
            choose_backend(chosen),
            store=store,
            rank=identity.rank,
            world_size=identity.size,
            device_id=chosen if chosen.type == "cuda" else None,
        )
        atexit.register(finish)
        _generation += 1
    # Seed.
    if seed is not None:
        seeds.seed_model(seed)
    _current = World(identity=identity, device=chosen, seed=seed)
    return _current


def finish() -> None:
    """Close the world; safe to call at any time, any number of times, and done at exit anyway."""
    global _current
    opened_here = _current is not None and _current.identity.launcher != "torch.distributed"
    _current = None
    atexit.unregister(finish)
    if opened_here and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        wait_for_idle_threads()


def current() -> World:
    """Give the world of this process; without :func:`init`, a world of one.

    Raises:
        WorldError: a launcher started several workers, but nobody called :func:`init`. (Going on would train
            every worker on the same data, each on its own, and nobody would notice.)
    """
    if _current is not None:
        return _current
    identity = identify(os.environ)
    if identity.size > 1:
        raise WorldError(
            f"{identity.launcher} started {identity.size} workers, but this one has not met the others; "
            "call rueda.init() first"
        )
    return World()


def is_open() -> bool:
    """Say whether :func:`init` was called, and :func:`finish` not yet."""
    return _current is not None


def adopted_identity() -> Identity:
    """Take rank and size from the process group that the script made itself."""
    told = identify(os.environ)
    size = dist.get_world_size()
    if told.size != size:
        told = Identity(rank=dist.get_rank(), size=size)
    return replace(told, rank=dist.get_rank(), launcher="torch.distributed")


def _timeout(given: float | None) -> float:
    text = os.environ.get("RUEDA_TIMEOUT")
    try:
        seconds = given if given is not None else float(text) if text else DEFAULT_TIMEOUT_SECONDS
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise WorldError("RUEDA_TIMEOUT", expected="a positive number of seconds", got=text or given, do="correct it")
    return seconds
