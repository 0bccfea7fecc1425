"""The world: the workers of a training and their collectives.

With one worker there is no process group and no communication, so the same code runs on 1 and on N workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rueda.errors import PeerError, WorldError
from rueda.world import seeds
from rueda.world.device import backend_of, is_gpu
from rueda.world.extension import provided
from rueda.world.identity import Identity
from rueda.world.shared_memory.reducing_group import ReducingGroup
from rueda.world.shared_memory.world_group import copying_group, world_group
from rueda.world.stall.watcher import declared_work

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Value = TypeVar("Value")
Parameters = ParamSpec("Parameters")

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,  # Gloo has no mean: the sum is divided afterwards
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}
_NAMES = {"mean": "sum"}  # of operations that have another one in shared memory, which divides at once


@dataclass(frozen=True, kw_only=True)
class World:
    """The rank of this worker, its device, and collectives with the other workers; :func:`rueda.init` returns it.

    >>> world = World()
    >>> world.rank, world.size, world.is_main
    (0, 1, True)
    >>> world.all_reduce(torch.tensor([1.0, 2.0]), "mean")
    tensor([1., 2.])
    """

    identity: Identity = field(default_factory=Identity)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int | None = None

    @property
    def rank(self) -> int:
        """The rank of this worker, from 0."""
        return self.identity.rank

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.identity.size

    @property
    def local_rank(self) -> int:
        """The rank of this worker among those of its machine."""
        return self.identity.local_rank

    @property
    def local_size(self) -> int:
        """The number of workers on this machine."""
        return self.identity.local_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.identity.rank == 0

    # Collectives: all workers must call them, in the same order.

    def barrier(self) -> None:
        """Block until every worker has called ``barrier``."""
        if self.size > 1:
            dist.barrier()

    def all_reduce(self, tensor: Tensor, operation: str = "sum") -> Tensor:
        """Return the sum, mean, min, max or product of all workers' tensors, the same on all workers."""
        self._check_operation(tensor, operation)
        shared = self._shared(tensor)
        if shared is None or not shared.can_reduce(tensor, _NAMES.get(operation, operation)):
            return self._all_reduce_in_group(tensor.detach().clone(), operation)
        result = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
        shared.all_reduce(tensor, _NAMES.get(operation, operation), divisor=self._divisor(operation), result=result)
        return result

    def all_reduce_(self, tensor: Tensor, operation: str = "sum") -> Tensor:
        """Overwrite a tensor with the sum, mean, min, max or product of all workers' tensors, and return it."""
        self._check_operation(tensor, operation)
        shared = self._shared(tensor)
        if shared is None or not shared.can_reduce(tensor, _NAMES.get(operation, operation)):
            self._all_reduce_in_group(tensor.detach(), operation)
        else:
            shared.all_reduce(tensor, _NAMES.get(operation, operation), divisor=self._divisor(operation))
        return tensor

    def _check_operation(self, tensor: Tensor, operation: str) -> None:
        if operation not in _OPERATIONS:
            raise WorldError("all_reduce", expected=f"one of {', '.join(_OPERATIONS)}", got=operation, do="choose one")
        if operation == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
            raise WorldError(
                "the mean", expected="a floating-point tensor", got=str(tensor.dtype), do="convert it first"
            )

    def _all_reduce_in_group(self, result: Tensor, operation: str) -> Tensor:
        if self.size > 1:
            dist.all_reduce(result, _OPERATIONS[operation])
            if operation == "mean":
                result /= self.size
        return result

    def _divisor(self, operation: str) -> int | None:
        return self.size if operation == "mean" else None

    @property
    def transport(self) -> str:
        """How the tensors of an all-reduce travel between the workers.

        ``shared memory``, ``shared memory within hosts`` (and sockets between them), ``gloo`` or ``nccl``.
        """
        shared = self._shared(torch.zeros(())) if self.device.type == "cpu" else None
        return backend_of(self.device) if shared is None else shared.transport

    def _shared(self, tensor: Tensor) -> ReducingGroup | None:
        """Return the group in shared memory, if the workers have one and the tensor is on the CPU."""
        return world_group() if self.size > 1 and tensor.is_cpu else None

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all workers in rank order; their shapes must be equal.

        Gradients pass through: that of a worker's tensor is the sum of the gradients from all workers' results. A step
        of a task calls :func:`rueda.gather` instead, which also works in a rehearsal.
        """
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            tensor = tensor.detach()
        if self.size == 1:
            return [tensor.clone()]
        from rueda.world.gathering import AllGather

        return list(AllGather.apply(tensor))  # type: ignore[no-untyped-call]

    def begin_all_reduce(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin to sum all workers' tensors, in place, and return at once; the returned function waits for the sum."""
        if self.size == 1:
            return lambda: tensor
        work = dist.all_reduce(tensor, async_op=True)

        def finish() -> Tensor:
            work.wait()
            return tensor

        return finish

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Return a copy of the tensor of rank ``source`` on every worker."""
        self._check_source(source)
        result = tensor.detach().clone()
        if self.size > 1:
            self._broadcast(result, source)
        return result

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        shared = copying_group() if tensor.is_cpu else None
        if shared is not None:
            shared.broadcast(tensor, source)
        else:
            dist.broadcast(tensor, source)

    def all_gather_object(self, value: Value) -> list[Value]:
        """Return the Python objects of all workers in rank order; they are pickled."""
        if self.size == 1:
            return [value]
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, value)
        return parts

    def broadcast_object(self, value: Value, source: int = 0) -> Value:
        """Return the Python object of rank ``source`` on every worker; it is pickled."""
        self._check_source(source)
        if self.size == 1:
            return value
        parts: list[Any] = [value]
        dist.broadcast_object_list(parts, source)
        return parts[0]  # type: ignore[no-any-return]

    # Functions that run on one worker only.

    def on_main(
        self, function: Callable[Parameters, Value], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Value:
        """Call a function on rank 0 only, and return its result on all workers; an error is raised on all workers.

        Use it for printing, saving and logging: ``world.on_main(torch.save, model.state_dict(), "model.pt")``.

        Args:
            function: the function; its result is pickled, so that all workers receive it.
            args: its positional arguments.
            kwargs: its keyword arguments.
        """
        if self.size == 1:
            return function(*args, **kwargs)
        result: Value | None = None
        error: Exception | None = None
        if self.is_main:
            try:
                with declared_work(f"on_main({getattr(function, '__name__', 'a function')})"):
                    result = function(*args, **kwargs)
            except Exception as caught:  # the other workers must learn of any error, or they block for ever
                error = caught
        message = None if error is None else f"{type(error).__name__}: {error}"
        value, message = self.broadcast_object((result, message))
        if error is not None:
            raise error
        if message is not None:
            raise PeerError(f"rank 0 failed while the others waited: {message}")
        return value  # type: ignore[return-value]

    @contextmanager
    def local_main_first(self) -> Iterator[None]:
        """Run the block on the first worker of each machine, then on the others: for downloads into a shared cache."""
        if self.local_rank != 0:
            self.barrier()
        try:
            with declared_work("local_main_first"):
                yield
        finally:  # also after an error, or the others would block for ever
            if self.local_rank == 0:
                self.barrier()

    # The data.

    def loader(self, dataloader: DataLoader[Any], *, split_batch: bool = False, seed: int | None = None) -> Any:
        """Divide what a torch ``DataLoader`` yields among the workers, and return this worker's share.

        Its data set, transforms, ``collate_fn``, processes and sampler are kept; its batch size becomes that of each
        worker, or is divided among them. The result is a :class:`rueda.Loader`: it is shuffled anew in each epoch if
        the DataLoader shuffles, puts batches on this worker's device, and its state can be saved
        (``rueda.Checkpoint(..., loader=loader)``) and resumed on another number of workers. Map-style and iterable data
        sets are divided as :func:`rueda.data.dataloader.share_dataloader` says.

        Args:
            dataloader: the DataLoader, the same on all workers.
            split_batch: whether its batch size is the global batch, which is divided among the workers, so that the
                training is the same on any number of them; by default each worker takes batches of that size.
            seed: seed of the order; by default that of :func:`rueda.init`, or 0.
        """
        seed = self.seed or 0 if seed is None else seed
        return provided("loader")(dataloader, world=self, split_batch=split_batch, seed=seed)

    # The model.

    def synchronise(self, model: nn.Module) -> None:
        """Broadcast rank 0's parameters and buffers to all workers."""
        if self.size > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                self._broadcast(tensor.detach(), 0)

    def wrap(self, model: nn.Module, *, sync_buffers: bool = True, **options: Any) -> nn.Module:
        """Move a model to this worker's device, and wrap it so that its gradients are averaged over all workers.

        On N workers it returns a :class:`torch.nn.parallel.DistributedDataParallel`, which first broadcasts rank 0's
        parameters; on one worker it returns the model. From then on random numbers such as those of dropout differ
        between the ranks: all generators follow the seed that :func:`rueda.init` was given; without one, torch's follow
        torch's own seed, and rank 0's goes on as on one worker.

        Args:
            model: the model, with the same architecture on every rank.
            sync_buffers: broadcast rank 0's buffers (batch-norm statistics) at every forward pass, as torch does by
                default; False keeps them separate on each worker.
            options: further arguments of DistributedDataParallel.
        """
        model = model.to(self.device)
        if self.seed is not None:
            seeds.seed_worker(self.seed, self.rank, step=0)
        if self.size == 1:
            return model
        if self.seed is None and self.rank > 0:
            torch.manual_seed(seeds.derive("worker", torch.initial_seed(), self.rank))
        if not any(parameter.requires_grad for parameter in model.parameters()):
            self.synchronise(model)
            return model
        from torch.nn.parallel import DistributedDataParallel

        from rueda.world.compiler_import import default_compiler_options
        from rueda.world.shared_memory.gradients import exchange_in_shared_memory

        # torch 2.13 renamed broadcast_buffers: the old name warns from then on, and the new one fails before.
        name = "forward_sync_buffers" if _knows_forward_sync(DistributedDataParallel) else "broadcast_buffers"
        devices = [self.device] if is_gpu(self.device) else None
        if not sync_buffers:
            self.synchronise(model)  # with the old name, the buffers are not broadcast at the start either
        with default_compiler_options():
            wrapped = DistributedDataParallel(model, device_ids=devices, **{name: sync_buffers, **options})
        exchange_in_shared_memory(wrapped)
        return wrapped

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the model that was passed to :meth:`wrap`; its state dict has the same keys on 1 and N workers."""
        from torch.nn.parallel import DistributedDataParallel

        return model.module if isinstance(model, DistributedDataParallel) else model

    def _check_source(self, source: int) -> None:
        if not 0 <= source < self.size:
            raise WorldError("source", expected=f"a rank below {self.size}", got=source, do="name an existing worker")


def _knows_forward_sync(wrapper: Callable[..., nn.Module]) -> bool:
    import inspect

    return "forward_sync_buffers" in inspect.signature(wrapper).parameters
