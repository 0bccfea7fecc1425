"""The process groups that carry large tensors: one for each process set and device type, created when first needed.

They belong to the engine. The collectives that a script runs through torch.distributed itself use other connections and
cannot be confused with these.

A rank that is stopped keeps its connections open, and a transfer with it neither ends nor fails. NCCL can abort such a
transfer. Gloo cannot: there a thread waits for a transfer in turns of a second and looks between them whether the world
has failed meanwhile (:class:`Transfer`), and a group that was aborted is never destroyed, since that would wait for its
transfers.

CPU tensors of ranks on one host go through shared memory where that is possible
(:mod:`rueda.world.shared_memory`), and through Gloo otherwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.core.entries import MAX, MIN, PRODUCT, SUM
from rueda.world.shared_memory.fixed_buckets import FixedBuckets
from rueda.world.shared_memory.group import SharedGroup
from rueda.world.shared_memory.operations import Fusion
from rueda.world.shared_memory.reducing_group import Begun, ReducingGroup
from rueda.world.shared_memory.reductions import can_reduce
from rueda.world.shared_memory.transport import connect_buckets, connect_group
from rueda.world.stall.limits import GROUP_TIMEOUT
from rueda.world.stall.peers import own_connection

OPERATIONS = {
    SUM: dist.ReduceOp.SUM,
    MIN: dist.ReduceOp.MIN,
    MAX: dist.ReduceOp.MAX,
    PRODUCT: dist.ReduceOp.PRODUCT,
}
_NAMES = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "product",
}  # of shared memory
_TURN_SECONDS = 1.0
_TURN = timedelta(seconds=_TURN_SECONDS)

Failure = Callable[[], HorovodInternalError | None]


class Transfer:
    """A collective of Gloo that is under way; it has no other method than :meth:`wait`."""

    __slots__ = ("_failure", "_work")

    def __init__(self, work: Any, failure: Failure) -> None:
        self._work = work
        self._failure = failure

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait until it has finished, and return False if it has not after ``seconds``.

        Raises:
            RuntimeError: a rank is gone.
            HorovodInternalError: the world has failed.
        """
        deadline = time.monotonic() + seconds if seconds < math.inf else seconds
        turn = min(seconds, _TURN_SECONDS)
        while True:
            try:
                self._work.wait(_TURN if turn == _TURN_SECONDS else timedelta(seconds=turn))
                return True
            except RuntimeError:
                if (failure := self._failure()) is not None:
                    raise type(failure)(*failure.args) from None
                if self._work.is_completed():
                    self._work.wait()  # raises the error of the transfer, unless it finished just now
                    return True
            if time.monotonic() >= deadline:
                return False


class GlooGroup:
    """A process group of Gloo whose methods return a :class:`Transfer`."""

    def __init__(self, group: Any, failure: Failure) -> None:
        self._group = group
        self._failure = failure

    def __getattr__(self, name: str) -> Callable[..., Transfer]:
        method, failure = getattr(self._group, name), self._failure

        def start(*arguments: Any) -> Transfer:
            return Transfer(method(*arguments), failure)

        self.__dict__[name] = start  # later calls find it without this method
        return start

    def abort(self) -> None:
        """Keep the group for as long as the process lives: to destroy it would wait for its transfers."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))

    def shutdown(self) -> None:
        """Close the connections."""
        self._group.shutdown()


class _Done:
    """A collective that has finished."""

    def wait(self, seconds: float = math.inf) -> bool:
        """Return at once."""
        return True


_DONE = _Done()


class ReducingTransfers:
    """A process group whose all-reduces go through shared memory, within hosts at least; all else goes through Gloo.

    Args:
        group: the group in shared memory.
        connect: connects the same ranks by Gloo; all of them reach the first collective that needs it.
    """

    def __init__(self, group: ReducingGroup, connect: Callable[[], GlooGroup]) -> None:
        self._group = group
        self._connect = connect
        self._connected: GlooGroup | None = None

    def allreduce(self, tensors: list[torch.Tensor], operation: Any) -> Begun | Transfer:
        """Reduce one tensor in place."""
        (tensor,) = tensors
        name = _NAMES[operation]
        if not self._group.can_reduce(tensor, name):
            return self._gloo().allreduce(tensors, operation)
        return self._group.begin_all_reduce(tensor, name)

    def allreduce_into(
        self, result: torch.Tensor, tensor: torch.Tensor, operation: Any, finish: Callable[[torch.Tensor], object]
    ) -> None:
        """Reduce a tensor into ``result``, which may be the tensor itself; ``finish`` changes each part in place."""
        self._group.all_reduce(tensor, _NAMES[operation], result=result, finish_part=finish)

    def fused_bytes(self, dtype: torch.dtype, operation: Any) -> int:
        """Return how many bytes :meth:`fused_allreduce` reduces at once; 0 if it cannot reduce this dtype."""
        return self._group.chunk_bytes if can_reduce(dtype, _NAMES[operation]) else 0

    def fused_allreduce(self, num_elements: int, dtype: torch.dtype, operation: Any, fusion: Fusion) -> Begun:
        """Reduce what ``fusion`` writes directly into shared memory."""
        return self._group.begin_fused_all_reduce(num_elements, dtype, _NAMES[operation], fusion)

    def __getattr__(self, name: str) -> Callable[..., Transfer]:
        method: Callable[..., Transfer] = getattr(self._gloo(), name)
        return method

    def _gloo(self) -> GlooGroup:
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def abort(self) -> None:
        """End the transfers that are under way."""
        self._group.shutdown()
        if self._connected is not None:
            self._connected.abort()

    def shutdown(self) -> None:
        """Leave the group."""
        self._group.shutdown()
        if self._connected is not None:
            self._connected.shutdown()


class SharedTransfers(ReducingTransfers):
    """A process group whose collectives all go through shared memory, but for types that this lacks.

    Args:
        group: the group in shared memory.
        connect: see :class:`ReducingTransfers`.
    """

    def __init__(self, group: SharedGroup, connect: Callable[[], GlooGroup]) -> None:
        super().__init__(group, connect)
        self._shared = group

    def broadcast(self, tensor: torch.Tensor, root: int) -> _Done:
        """Broadcast a tensor in place."""
        self._shared.broadcast(tensor, root)
        return _DONE

    def _allgather_base(self, result: torch.Tensor, tensor: torch.Tensor) -> _Done:
        self._shared.all_gather(result.view(self._shared.size, -1).unbind(), tensor)
        return _DONE

    def _reduce_scatter_base(self, result: torch.Tensor, tensor: torch.Tensor, options: Any) -> _Done | Transfer:
        name = next(name for operation, name in _NAMES.items() if options.reduceOp == operation)
        if not self._group.can_reduce(tensor, name):
            return self._gloo()._reduce_scatter_base(result, tensor, options)
        self._shared.reduce_scatter(result, tensor, name)
        return _DONE


class ProcessGroups:
    """All process groups of one world, by name.

    Args:
        store: the store in which their members find each other.
        rank: the rank of this worker.
        failure: returns the error that ended the world, or None.
        silence_seconds: after this time the watcher of stalls ends the creation of a group, and after twice this time
            Gloo does; 0: a week.
    """

    def __init__(self, store: Any, rank: int, failure: Failure, silence_seconds: float) -> None:
        self._store = store
        self._rank = rank
        self._failure = failure
        self._patience = timedelta(seconds=2 * silence_seconds) if silence_seconds else GROUP_TIMEOUT
        self._groups: dict[tuple[str, str], Any] = {}
        self._dropped: list[str] = []
        self.device: torch.device | None = None  # the GPU of this rank's tensors, once there were any
        self._aborted = False

    def get(self, name: str, members: tuple[int, ...], device: str) -> Any:
        """Return the process group of these ranks; the first call, which all members must make, creates it."""
        key = (name, device)
        if key not in self._groups:
            if self._aborted:
                raise HorovodInternalError("the process groups were aborted")
            self._groups[key] = self._create(f"{name}/{device}", members, device)
        return self._groups[key]

    def _create(self, name: str, members: tuple[int, ...], device: str) -> Any:
        store = PrefixStore(f"group/{name}", self._store)
        rank, size = members.index(self._rank), len(members)
        if device == "cuda":
            gpu = self.device or torch.device(device, torch.cuda.current_device())
            connect = partial(_connect_nccl, store, rank, size, gpu)
        else:
            gloo = partial(self._gloo, store, rank, size)
            shared = self._connect(
                partial(self._connect_shared, connect_group, PrefixStore("shared", store), rank, size)
            )
            if shared is None:
                return gloo()
            return (SharedTransfers if isinstance(shared, SharedGroup) else ReducingTransfers)(shared, gloo)
        return self._connect(connect)

    def _gloo(self, store: Store, rank: int, size: int) -> GlooGroup:
        return GlooGroup(self._connect(partial(_connect_gloo, store, rank, size, self._patience)), self._failure)

    def _connect_shared(self, connect: Callable[..., Any], store: Store, *arguments: Any) -> Any:
        return connect(own_connection(store), *arguments, self._patience, self._new_failure)

    def _connect(self, connect: Callable[[], Any]) -> Any:
        """Call a function in a thread of its own, and look meanwhile whether the world has failed."""
        created: Future[Any] = Future()
        threading.Thread(target=_keep, args=(created, connect), name="rueda.hvd connect", daemon=True).start()
        while not wait([created], timeout=_TURN_SECONDS).done:
            self._raise_failure()
        if created.exception() is not None:
            self._raise_failure()  # why a member has given up says more than that its connection is gone
        return created.result()

    def buckets(self, name: str, members: tuple[int, ...], bucket_bytes: list[int]) -> FixedBuckets | None:
        """Return buckets of these sizes in shared memory, or None where that cannot be had; all members must call it.

        :meth:`close_group` and :meth:`drop` close them as they close a group of this name.
        """
        store, rank = PrefixStore(f"group/{name}/buckets", self._store), members.index(self._rank)
        connect = partial(self._connect_shared, connect_buckets, store, rank, len(members), bucket_bytes)
        found: FixedBuckets | None = self._connect(connect)
        if found is not None:
            self._groups[name, "buckets"] = found
        return found

    def _new_failure(self) -> HorovodInternalError | None:
        """Return the error that ended the world as a new exception, which another thread may raise as well."""
        failure = self._failure()
        return None if failure is None else type(failure)(*failure.args)

    def _raise_failure(self) -> None:
        if (failure := self._new_failure()) is not None:
            raise failure

    def close_group(self, name: str) -> None:
        """Close the process groups of this name."""
        for key in [key for key in self._groups if key[0] == name]:
            _close(self._groups.pop(key))

    def drop(self, name: str) -> None:
        """Let the next :meth:`close_dropped` close a group: a finalizer must not close connections itself."""
        self._dropped.append(name)

    def close_dropped(self) -> None:
        """Close the groups that were dropped."""
        while self._dropped:
            self.close_group(self._dropped.pop())

    def abort(self) -> None:
        """End the transfers of all process groups, from any thread; no group can be used or created afterwards."""
        self._aborted = True
        for group in list(self._groups.values()):
            with contextlib.suppress(AttributeError, RuntimeError):  # older versions of torch cannot abort
                group.abort()

    def close(self) -> None:
        """Close all process groups."""
        while self._groups:
            _close(self._groups.popitem()[1])


def _keep(created: Future[Any], connect: Callable[[], Any]) -> None:
    try:
        created.set_result(connect())
    except Exception as error:
        created.set_exception(error)


def _connect_gloo(store: Store, rank: int, size: int, patience: timedelta) -> Any:
    group = dist.ProcessGroupGloo(own_connection(store), rank, size, patience)
    group._set_default_timeout(GROUP_TIMEOUT)
    return group


def _connect_nccl(store: Store, rank: int, size: int, device: torch.device) -> Any:
    """Create a process group of NCCL, and run a collective, since NCCL connects only then and blocks the host.

    Connecting in a later collective could block the host: a rank may start one in order to leave, while the others
    do something else.
    """
    torch.cuda.set_device(device)  # a new thread begins on GPU 0
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = GROUP_TIMEOUT
    group: Any = dist.ProcessGroupNCCL(own_connection(store), rank, size, options)
    group.allreduce([torch.zeros(1, device=device)]).wait()
    return group


def _close(group: Any) -> None:
    with contextlib.suppress(AttributeError, RuntimeError):  # older versions of torch close it when it is deleted
        group.shutdown()


class ReadyEvent(NamedTuple):
    """A CUDA event, and the GPU on one of whose streams it was recorded."""

    event: Any
    device: torch.device


def record_event(tensors: list[torch.Tensor]) -> ReadyEvent | None:
    """Return an event that occurs when these tensors are ready; None for CPU tensors, which are ready now.

    It is recorded on the calling thread's current stream of the tensors' GPU, which need not be the current GPU.
    """
    if not tensors or tensors[0].device.type != "cuda":
        return None
    device = tensors[0].device
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return ReadyEvent(event, device)


def wait_for_event(ready: ReadyEvent | None) -> None:
    """Let the calling thread's current stream of the event's GPU wait for it."""
    if ready is not None:
        torch.cuda.current_stream(ready.device).wait_event(ready.event)
