"""The methods of a distributed optimizer: it counts backward passes, and its step waits for the reduced gradients."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.gradient_reducer import GradientReducer
from rueda.world import elastic


class Distributed(torch.optim.Optimizer):
    """The methods that every distributed optimizer has; a mix-in for the class of the wrapped optimizer."""

    def _set_up(self, reducer: GradientReducer, backward_passes_per_step: int) -> None:
        self._reducer = reducer
        self._named = reducer.named
        self._parameter_names = dict(zip(reducer.named.parameters, reducer.named.names, strict=True))
        self._compression, self.op, self.process_set = reducer.compression, reducer.op, reducer.process_set
        self.gradient_predivide_factor, self.sparse_as_dense = reducer.predivide, reducer.sparse_as_dense
        self.backward_passes_per_step = backward_passes_per_step
        self._reset_counts()
        self._synchronized = False
        self._should_synchronize = True
        self._is_alone: bool | None = None
        if elastic.is_elastic():
            own = weakref.WeakMethod(self._discard)
            weakref.finalize(self, elastic.on_leave(lambda failed: _call(own)))
        if not self._alone or elastic.is_elastic():  # which may get company
            reducer.bind()
            parameter: Any
            for number, parameter in enumerate(self._named.parameters):
                if hasattr(parameter, "_rueda_hvd_hook"):  # of an optimizer that this one replaces
                    parameter._rueda_hvd_hook.remove()
                hook = partial(_on_gradient, weakref.ref(self), number)
                parameter._rueda_hvd_hook = parameter.register_post_accumulate_grad_hook(hook)

    @property
    def _alone(self) -> bool:
        """Whether there is nobody to reduce with; a rank outside the process set trains by itself, as in Horovod."""
        if self._is_alone is None:
            process_set = self._reducer.process_set
            self._is_alone = process_set.size() == 1 or not process_set.included()
        return self._is_alone

    # While the backward pass runs.

    def _count(self, number: int) -> None:
        """Count a backward pass that has written this gradient; after the last one the gradient is final."""
        if self._alone:
            return
        left = self._left
        if left[number] <= 0:
            raise AssertionError(
                f"{self._named.names[number]}: expected {self.backward_passes_per_step} backward passes before step(), "
                "got one more; call step() or synchronize() first, or raise backward_passes_per_step"
            )
        left[number] -= 1
        if left[number] == 0:
            self._on_final(number)

    def _on_final(self, number: int) -> None:
        """Start the all-reduce of a gradient that no further backward pass will change."""
        self._reducer.bind()
        self._finals.append(number)
        self._reducer.send(number, self._finals)

    def _discard(self) -> None:
        """Forget a step that was interrupted, with its gradients: the worker is about to leave its world."""
        self._reset_counts()
        self._synchronized = False
        self._is_alone = None
        self._reducer.discard()
        torch.optim.Optimizer.zero_grad(self)

    # Between the backward pass and the update.

    def synchronize(self) -> None:
        """Block until every gradient is reduced and written into ``parameter.grad``.

        Call it yourself to change the reduced gradients, for example to clip them, and then call ``step()`` within
        :meth:`skip_synchronize`. A parameter that a rank has not used counts as zero there; one that no rank has used
        gets a gradient of zeros, so weight decay and momentum apply to it, as in Horovod.
        """
        self._synchronized = True
        if self._alone:
            return
        without_buckets = self._reducer.finish()
        finals = self._finals
        self._reset_counts()
        if without_buckets:
            self._reducer.agree(finals)

    def _reset_counts(self) -> None:
        """Start counting anew: every gradient expects ``backward_passes_per_step`` backward passes."""
        self._finals: list[int] = []  # the numbers of this step's final gradients, in the order they became final
        self._left = [self.backward_passes_per_step] * len(self._named.parameters)

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context ``step()`` does not wait for gradients; call :meth:`synchronize` before it."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes whose gradients are accumulated before they are reduced."""
        self.backward_passes_per_step = passes
        self._left = [passes] * len(self._named.parameters)

    # The interface of every optimizer.

    def step(self, closure: Any = None) -> Any:
        """Wait for the reduced gradients and update the parameters.

        Args:
            closure: computes the loss and the gradients again. The gradients and the loss that it returns are averaged
                over the workers at every call, so that optimizers that look at the loss (L-BFGS) take the same
                decisions on all workers.
        """
        if closure is not None and not self._alone:
            if self._finals:
                self.synchronize()
            self._synchronized = False
            return super().step(self._averaging(closure))
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(  # scripts filter by the beginning of this message, which is Horovod's
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): it reduces the gradients a second time; put step() into "
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
            mean = ops.allreduce(value, name=f"{self._reducer.name}.loss", process_set=self._reducer.process_set)
            return mean if isinstance(loss, Tensor) else mean.item()

        return averaged

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; not allowed between the backward pass and ``step()``, while they are being reduced."""
        if self._finals:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(), while the gradients are being reduced; call it after one of these"
            )
        super().zero_grad(set_to_none=set_to_none)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a distributed optimizer cannot be pickled; save optimizer.state_dict() instead")


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()


def _on_gradient(owner: weakref.ref[Any], number: int, _: Tensor) -> None:
    optimizer = owner()
    if optimizer is not None:
        optimizer._count(number)
