"""A stand-in for NCCL on the impostor: collectives of device tensors, carried by Gloo through host memory.

It takes the place of ``ProcessGroupNCCL``, so the code under test asks for NCCL as it would on a GPU. As in NCCL,

- the ranks connect in the first collective of a group, which blocks the host until all of them have begun it;
- later collectives return at once, and each group runs its own in the order in which they were started, as on a stream.

``wait()`` returns when the collective has finished; on a GPU only the current stream would wait for that.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d


class Started(dist._Work):
    """The handle of a collective that may not have finished; ``done`` gets its result."""

    def __init__(self, done: Future[list[Tensor]]) -> None:
        super().__init__()
        self._done = done
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        done.add_done_callback(self._pass_on)

    def _pass_on(self, done: Future[list[Tensor]]) -> None:
        error = done.exception()
        self._future.set_result(done.result()) if error is None else self._future.set_exception(error)

    def wait(self, timeout: Any = None) -> bool:
        self._done.result()
        return True

    def is_completed(self) -> bool:
        return self._done.done()

    def is_success(self) -> bool:
        return self._done.done() and self._done.exception() is None

    def get_future(self) -> Any:
        return self._future

    def result(self) -> list[Tensor]:
        return self._done.result()


class Finished(Started):
    """The handle of a collective that has finished."""

    def __init__(self, result: list[Tensor]) -> None:
        done: Future[list[Tensor]] = Future()
        done.set_result(result)
        super().__init__(done)


class Options:
    """The options that ``ProcessGroupNCCL.Options`` has and the code under test may set."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self._timeout = timedelta(minutes=10)
        self.is_high_priority_stream = is_high_priority_stream
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.config: Any = None


class StandIn(dist.ProcessGroup):
    """A process group of device and CPU tensors, over Gloo."""

    Options = Options

    def __init__(self, store: Any, rank: int, size: int, options: Any = None) -> None:
        super().__init__(rank, size)
        timeout = options._timeout if options is not None else timedelta(minutes=10)
        self.options = options
        self.aborted = False
        self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("stand-in", store), rank, size, timeout)
        self._stream = ThreadPoolExecutor(1, thread_name_prefix="stand-in for NCCL")
        self._messages = ThreadPoolExecutor(64, thread_name_prefix="messages of the stand-in for NCCL")
        self._connected = False
        self._name = ""

    def getGroupName(self) -> str:
        return self._name  # torch asks a group's backend, which a group in Python does not have

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getBackendName(self) -> str:
        return "nccl"

    def name(self) -> str:
        return "nccl"

    supports_splitting = False

    def _get_backend(self, device: torch.device) -> StandIn:
        return self

    def abort(self) -> None:
        self.aborted = True

    def shutdown(self) -> None:
        self._gloo.shutdown() if hasattr(self._gloo, "shutdown") else None

    def _set_sequence_number_for_group(self) -> None:
        self._gloo._set_sequence_number_for_group()

    def _connect(self) -> None:
        if not self._connected:
            self._connected = True
            self._gloo.barrier().wait()

    def _start(self, run: Callable[[], Any], result: Any) -> Started:
        """Let a collective run after those that were started before."""
        self._connect()

        def finish() -> list[Tensor]:
            run()
            return result if isinstance(result, list) else [result]

        return Started(self._stream.submit(finish))

    def _carry(self, method: str, outputs: Any, inputs: Any, *rest: Any, in_place: bool = False) -> Started:
        return self._start(partial(self._run, method, outputs, inputs, *rest, in_place=in_place), outputs)

    def _run(self, method: str, outputs: Any, inputs: Any, *rest: Any, in_place: bool = False) -> None:
        """Run one of Gloo's collectives with copies on the host, and copy its results back."""
        host_outputs = _to_host(outputs)
        arguments = (host_outputs,) if in_place else (host_outputs, _to_host(inputs))
        getattr(self._gloo, method)(*arguments, *rest).wait()
        _copy_back(outputs, host_outputs)

    def allreduce(self, tensors: Any, options: Any = None) -> Started:
        operation = dist.ReduceOp.SUM if options is None else getattr(options, "reduceOp", options)
        average = operation == dist.ReduceOp.AVG  # NCCL has it, Gloo does not
        given = distributed_c10d.AllreduceOptions()
        given.reduceOp = dist.ReduceOp.SUM if average else operation

        def run() -> None:
            self._run("allreduce", tensors, [], given, in_place=True)
            for tensor in tensors if average else []:
                tensor /= self.size()

        return self._start(run, tensors)

    def allreduce_coalesced(self, tensors: Any, options: Any = None) -> Started:
        for tensor in tensors[:-1]:
            self.allreduce([tensor], options)
        last = self.allreduce(tensors[-1:], options)
        return self._start(last.wait, tensors)

    def broadcast(self, tensors: Any, options: Any) -> Started:
        return self._carry("broadcast", tensors, [], options, in_place=True)

    def reduce(self, tensors: Any, options: Any) -> Started:
        return self._carry("reduce", tensors, [], options, in_place=True)

    def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> Started:
        return self._carry("allgather", outputs, inputs, options or distributed_c10d.AllgatherOptions())

    def _allgather_base(self, output: Tensor, given: Tensor, options: Any = None) -> Started:
        parts = list(output.view(-1).chunk(self.size()))
        arguments = ([parts], [given.reshape(-1)], distributed_c10d.AllgatherOptions())
        return self._start(partial(self._run, "allgather", *arguments), output)

    all_gather_single = _allgather_base  # as torch 2.13 calls it

    def gather(self, outputs: Any, inputs: Any, options: Any) -> Started:
        return self._carry("gather", outputs, inputs, options)

    def scatter(self, outputs: Any, inputs: Any, options: Any) -> Started:
        return self._carry("scatter", outputs, inputs, options)

    def reduce_scatter(self, outputs: Any, inputs: Any, options: Any = None) -> Started:
        return self._carry("reduce_scatter", outputs, inputs, options or distributed_c10d.ReduceScatterOptions())

    def _reduce_scatter_base(self, output: Tensor, given: Tensor, options: Any = None) -> Started:
        return self._carry("_reduce_scatter_base", output, given, options or distributed_c10d.ReduceScatterOptions())

    reduce_scatter_single = _reduce_scatter_base

    def alltoall_base(self, output: Tensor, given: Tensor, *rest: Any) -> Started:
        return self._carry("alltoall_base", output, given, *rest)

    def alltoall(self, outputs: Any, inputs: Any, options: Any = None) -> Started:
        return self._carry("alltoall", outputs, inputs, options or distributed_c10d.AllToAllOptions())

    def send(self, tensors: Any, destination: int, tag: int) -> Started:
        return self._exchange("send", tensors, destination, tag)

    def recv(self, tensors: Any, source: int, tag: int) -> Started:
        return self._exchange("recv", tensors, source, tag)

    def _exchange(self, method: str, tensors: Any, peer: int, tag: int) -> Started:
        """Post a message in its turn, and let those after it begin before it has arrived: torch groups them."""

        def post() -> tuple[Any, Any]:
            host = _to_host(tensors)
            return getattr(self._gloo, method)(host, peer, tag), host

        self._connect()
        posted = self._stream.submit(post)

        def finish() -> list[Tensor]:
            work, host = posted.result()
            work.wait()
            if method == "recv":
                _copy_back(tensors, host)
            return tensors

        return Started(self._messages.submit(finish))

    def barrier(self, opts: Any = None) -> Started:
        return self._start(lambda: self._gloo.barrier().wait(), [])


def install_nccl() -> None:
    """Let ``ProcessGroupNCCL`` be the stand-in, wherever torch looks for it."""
    for module in (dist, distributed_c10d):
        module.ProcessGroupNCCL = StandIn  # type: ignore[attr-defined]
        module.is_nccl_available = lambda: True
    torch.cuda.nccl.version = lambda: (2, 27, 5)
    _FUNCTIONAL.impl("all_gather_into_tensor", _functional_all_gather, "CUDA")


_FUNCTIONAL = torch.library.Library("_c10d_functional", "IMPL")


def _functional_all_gather(given: Tensor, size: int, name: str) -> Tensor:
    """Run DTensor's all-gather, which torch passes to a group's backend, and a group in Python has none."""
    output = given.new_empty(size * given.shape[0], *given.shape[1:])
    distributed_c10d._resolve_process_group(name)._allgather_base(output, given.contiguous()).wait()
    return output


def _flat(tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    return [tensor for part in tensors for tensor in _flat(part)]


def _to_host(tensors: Any) -> Any:
    if isinstance(tensors, Tensor):
        return tensors.detach().cpu().clone().contiguous()
    return [_to_host(part) for part in tensors]


def _copy_back(tensors: Any, host: Any) -> None:
    for tensor, value in zip(_flat(tensors), _flat(host), strict=True):
        tensor.detach().copy_(value)
