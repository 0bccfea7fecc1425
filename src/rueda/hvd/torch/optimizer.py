"""DistributedOptimizer: any optimizer, on gradients that are averaged over all workers.

While the backward pass runs, each gradient that is final is on its way; ``step()`` waits for them all. In the first
step gradients are matched by name; then the ranks agree on an order (:mod:`rueda.hvd.core.known_order`), and from the
second step on nothing is negotiated.
"""

from __future__ import annotations

import json
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.core import life
from rueda.hvd.core.known_order import KnownOrder, make_layout
from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.parameters import Named, name_parameters, number_groups


class _Distributed(torch.optim.Optimizer):
    """The methods that every distributed optimizer has; mixed into the class of the given one."""

    _named: Named

    def _set_up(
        self,
        named: Named,
        compression: type[Compressor],
        backward_passes_per_step: int,
        op: int,
        predivide: float,
        groups: list[list[int]],
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._named = named
        self._compression = compression
        self._op = op
        self._factors = (1.0 / predivide, predivide)
        self._groups = groups
        self._group_of = {number: group for group in groups for number in group}
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self.backward_passes_per_step = backward_passes_per_step
        self._left = [backward_passes_per_step] * len(named.parameters)
        self._handles: dict[int, tuple[Any, Any]] = {}
        self._finals: list[int] = []  # numbers in the order in which their gradients became final, in this step
        self._order: KnownOrder | None = None
        self._can_agree = True
        self._engine: Any = None
        self._title = ""
        self._synchronized = False
        self._should_synchronize = True
        self._alone = process_set.size() == 1
        if not self._alone:
            self._bind()
            for number, parameter in enumerate(named.parameters):
                former: Any = getattr(parameter, "_rueda_hvd_hook", None)
                if former is not None:  # of an optimizer that this one replaces
                    former.remove()
                anything: Any = parameter
                hook = _make_hook(weakref.ref(self), number)
                anything._rueda_hvd_hook = anything.register_post_accumulate_grad_hook(hook)

    # While the backward pass runs.

    def _count(self, number: int) -> None:
        """A backward pass has written a gradient; after the last one it is final."""
        left = self._left
        if left[number] <= 0:
            raise AssertionError(
                f"{self._named.names[number]}: expected {self.backward_passes_per_step} backward passes before step(), "
                "got one more; call step() or synchronize() first, or raise backward_passes_per_step"
            )
        left[number] -= 1
        if left[number] == 0:
            self._final(number)

    def _final(self, number: int) -> None:
        """A gradient is complete: send it, alone, with its group, or with its bucket."""
        self._bind()
        self._finals.append(number)
        order = self._order
        if order is not None and number in order:
            order.ready(number, _Gradients(self._named.parameters, self))
        elif number in self._group_of:
            group = self._group_of[number]
            if all(n in self._finals for n in group):
                self._submit_group(group)
        else:
            self._submit(number)

    def _bind(self) -> None:
        """Belong to the engine that runs now: after shutdown and init everything is agreed on anew."""
        engine = life.engine()
        if engine is not self._engine:
            self._engine = engine
            self._order = None
            self._can_agree = self._op in (ops.Average, ops.Sum)
            number = self._process_set.process_set_id  # ranks outside a set do not count its optimizers
            self._title = engine.title(f"set {number} optimizer" if number else "optimizer")
        if self._order is not None and self._order.ended:  # this rank had joined
            self._order = None

    def _label(self, number: int) -> str:
        prefix = "" if self._title == "optimizer.1" else f"{self._title}."
        return f"{prefix}allreduce.{self._named.names[number]}"

    def _submit(self, number: int) -> None:
        gradient = self._gradient(number)
        if gradient.is_sparse:
            sparse = ops.sparse_allreduce_async(gradient, self._label(number), self._op, self._process_set)
            self._handles[number] = (sparse, None)
            return
        small, context = self._compression.compress(gradient)
        prescale, postscale = self._factors
        handle = ops.allreduce_async_(
            small, name=self._label(number), op=self._op, prescale_factor=prescale, postscale_factor=postscale,
            process_set=self._process_set,
        )  # fmt: skip
        self._handles[number] = (handle, context)

    def _submit_group(self, group: list[int]) -> None:
        pairs = [self._compression.compress(self._dense(self._gradient(number))) for number in group]
        prescale, postscale = self._factors
        handle = ops.grouped_allreduce_async_(
            [pair[0] for pair in pairs], name=self._label(group[0]), op=self._op, prescale_factor=prescale,
            postscale_factor=postscale, process_set=self._process_set,
        )  # fmt: skip
        for number, pair in zip(group, pairs, strict=True):
            self._handles[number] = (handle, pair[1])

    def _gradient(self, number: int) -> Tensor:
        parameter = self._named.parameters[number]
        gradient = parameter.grad
        if gradient is None:
            return torch.zeros_like(parameter)
        return self._dense(gradient) if self._sparse_as_dense else gradient.detach()

    @staticmethod
    def _dense(gradient: Tensor) -> Tensor:
        return gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()

    # Between the backward pass and the update.

    def synchronize(self) -> None:
        """Wait until every gradient is reduced and stands in ``parameter.grad``.

        Call it yourself to do something with the reduced gradients (clip them), and then ``step()`` within
        :meth:`skip_synchronize`. A parameter that only some ranks have used counts as zero on the others; one that no
        rank has used keeps no gradient.
        """
        if self._alone:
            return
        self._bind()
        parameters = self._named.parameters
        order = self._order
        rest = [n for n in range(len(parameters)) if order is None or n not in order]
        present = [parameters[n].grad is not None for n in rest]
        presence = None
        if rest:
            flags = torch.tensor([*present], dtype=torch.int32)
            presence = ops.allreduce_async_(
                flags, name=f"{self._title}.present", op=ops.Sum, process_set=self._process_set
            )  # fmt: skip
            self._submit_rest(rest)
        if order is not None:
            for number in order.finish(_Gradients(parameters, self)):
                parameters[number].grad = order.result(number).to(parameters[number].dtype, copy=True)
            if order.ended:
                self._order = None
        if presence is not None:
            try:
                self._collect(rest, ops.synchronize(presence).tolist())
            finally:
                self._handles.clear()
        finals, self._finals = self._finals, []
        self._left = [self.backward_passes_per_step] * len(parameters)
        self._synchronized = True
        if order is None and self._can_agree:
            self._agree(finals)

    def _submit_rest(self, rest: list[int]) -> None:
        """Send zeros for what this rank did not use: others may have."""
        for number in rest:
            if number not in self._handles:
                if number in self._group_of:
                    self._submit_group(self._group_of[number])
                else:
                    self._submit(number)

    def _collect(self, rest: list[int], used_by: list[int]) -> None:
        results: dict[Any, Any] = {}
        for number, users in zip(rest, used_by, strict=True):
            handle, context = self._handles[number]
            if handle not in results:
                results[handle] = ops.synchronize(handle)
            result = results[handle]
            if isinstance(result, list):
                result = result[self._group_of[number].index(number)]
            parameter = self._named.parameters[number]
            if not users:
                continue
            value = result if result.is_sparse else self._compression.decompress(result, context)
            if parameter.grad is None or parameter.grad.is_sparse != value.is_sparse:
                parameter.grad = value.clone() if value.is_sparse else value.to(parameter.dtype)
            elif value.is_sparse:
                parameter.grad = value
            elif parameter.grad.data_ptr() != value.data_ptr():
                parameter.grad.detach().copy_(value)

    def _agree(self, finals: list[int]) -> None:
        """Settle the order of the next steps; the ranks either all do or all do not."""
        named = self._named
        sparse = [p.grad is not None and p.grad.is_sparse for p in named.parameters]
        said = [
            [named.names[n] for n in finals],
            [name for name, is_sparse in zip(named.names, sparse, strict=True) if is_sparse],
        ]
        words = torch.frombuffer(bytearray(json.dumps(said).encode() + b"\n"), dtype=torch.uint8)
        try:
            heard = ops.allgather(words, name=f"{self._title}.order", process_set=self._process_set)
        except HorovodInternalError:  # somebody has joined: later, perhaps
            if self._engine.failure is not None:
                raise
            return
        proposals = [json.loads(line) for line in bytes(heard.tolist()).splitlines()]
        number_of = {name: number for number, name in enumerate(named.names)}
        never = {number_of[name] for proposal in proposals for name in proposal[1]}
        first = [number_of[name] for name in proposals[0][0]]
        order = [n for n in dict.fromkeys([*first, *reversed(range(len(named.names)))]) if n not in never]
        if not order:  # all are sparse somewhere
            self._can_agree = False
            return
        like = [p.detach() for p in named.parameters]
        wire = [self._compression.wire_type or p.dtype if p.is_floating_point() else p.dtype for p in like]
        layout = make_layout(
            order, [(wire[n], like[n].device) for n in range(len(like))],
            [like[n].numel() * wire[n].itemsize for n in range(len(like))],
            [[n for n in group if n not in never] for group in self._groups],
        )  # fmt: skip
        self._order = KnownOrder(
            self._engine, self._engine.title(f"{self._title} order"), self._process_set.process_set_id or 0, layout,
            like, self._compression.wire_type, self._op, *self._factors,
        )  # fmt: skip

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let ``step()`` update without waiting for gradients, after :meth:`synchronize` was called by hand."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change after how many backward passes gradients are sent."""
        self.backward_passes_per_step = passes
        self._left = [passes] * len(self._named.parameters)

    # What every optimizer does.

    def step(self, closure: Any = None) -> Any:
        """Wait for the gradients and update the parameters.

        Args:
            closure: computes the loss and the gradients anew; they, and the loss it returns, are averaged over the
                workers each time, so that optimizers that look at the loss (L-BFGS) do the same on all of them.
        """
        if closure is not None and not self._alone:
            if self._finals:
                self.synchronize()
            self._synchronized = False
            return super().step(self._averaging(closure))
        if self._should_synchronize:
            if self._synchronized and not self._finals and not self._alone:
                warnings.warn(
                    "step() after synchronize() reduces the gradients a second time; put step() into "
                    "`with optimizer.skip_synchronize():`",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        return super().step(closure)

    def _averaging(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def averaged() -> Any:
            loss = closure()
            self.synchronize()
            if loss is None:
                return None
            value = loss.detach() if isinstance(loss, Tensor) else torch.tensor(float(loss), dtype=torch.float64)
            mean = ops.allreduce(value, name=f"{self._title}.loss", process_set=self._process_set)
            return mean if isinstance(loss, Tensor) else mean.item()

        return averaged

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; not between the backward pass and ``step()``, while they are on their way."""
        if self._finals:
            raise AssertionError(
                "zero_grad(): expected no gradients on their way, got some; call it after step() or synchronize()"
            )
        super().zero_grad(set_to_none=set_to_none)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a distributed optimizer: save optimizer.state_dict() instead of the object")


def _make_hook(owner: weakref.ref[Any], number: int) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        optimizer = owner()
        if optimizer is not None:
            optimizer._count(number)

    return hook


class _Gradients(Sequence[Any]):
    """The gradients of parameters, by number, as they are when asked for."""

    def __init__(self, parameters: list[Tensor], optimizer: _Distributed) -> None:
        self._parameters = parameters
        self._dense = optimizer._dense

    def __len__(self) -> int:
        return len(self._parameters)

    def __getitem__(self, number: Any) -> Any:
        parameter = self._parameters[number]
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            gradient = parameter.grad = self._dense(gradient)  # the order was made for dense ones
        return gradient


class _DistributedAdasum(_Distributed):
    """Adasum combines what the optimizers would do, not what the gradients are: each rank makes its own step, and the
    differences are combined (Maleki et al., section 3)."""

    def step(self, closure: Any = None) -> Any:
        """Update the parameters by the Adasum of all ranks' updates."""
        parameters = self._named.parameters
        before = [parameter.detach().clone() for parameter in parameters]
        result = super(_Distributed, self).step(closure)
        with torch.no_grad():
            pairs = [
                self._compression.compress(parameter.detach() - start)
                for parameter, start in zip(parameters, before, strict=True)
            ]
            self._bind()
            reduced = ops.grouped_allreduce(
                [pair[0] for pair in pairs], name=f"{self._title}.updates", op=ops.Adasum, process_set=self._process_set
            )
            for parameter, start, update, pair in zip(parameters, before, reduced, pairs, strict=True):
                parameter.copy_(start + self._compression.decompress(update, pair[1]))
        self._reset_passes()
        return result

    def _final(self, number: int) -> None:
        self._finals.append(number)

    def synchronize(self) -> None:
        """Do nothing: updates are combined in ``step()``, not gradients."""

    def _reset_passes(self) -> None:
        self._finals = []
        self._left = [self.backward_passes_per_step] * len(self._named.parameters)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = ops.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Make an optimizer whose gradients are averaged over all workers; it is an instance of the given one's class.

    Args:
        optimizer: any torch optimizer; its parameter groups and state are shared, not copied.
        named_parameters: ``model.named_parameters()``; None: names by position.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        backward_passes_per_step: gradients are accumulated over so many backward passes before they are sent.
        op: Average, Sum, Adasum, Min, Max or Product.
        gradient_predivide_factor: with Average: divide by so much before the sum, and by the rest after it, against
            overflow in half precision.
        num_groups: send the gradients in so many groups; the same as ``groups=N``.
        groups: a number, or lists of parameters that travel together.
        sparse_as_dense: send sparse gradients as dense ones: faster where most rows are used.
        process_set: among whom.

    Raises:
        ValueError: names that are not unique or not complete, or arguments that contradict each other.
    """
    if gradient_predivide_factor != 1.0 and op != ops.Average:
        raise ValueError("gradient_predivide_factor: expected op Average with it; leave it at 1.0")
    if gradient_predivide_factor <= 0 or backward_passes_per_step < 1:
        raise ValueError(
            "gradient_predivide_factor and backward_passes_per_step: expected more than 0, got "
            f"{gradient_predivide_factor} and {backward_passes_per_step}"
        )
    named = name_parameters(optimizer, named_parameters)
    numbered = number_groups(named, groups if groups is not None else num_groups)
    kind = _DistributedAdasum if op == ops.Adasum and process_set.size() > 1 else _Distributed
    made_class: Any = type(optimizer.__class__.__name__, (kind, optimizer.__class__), {})
    made: Any = made_class.__new__(made_class)
    made.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    made._set_up(
        named,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        numbered,
        sparse_as_dense,
        process_set,
    )
    return made
