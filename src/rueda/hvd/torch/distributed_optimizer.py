"""What makes an optimizer a distributed one: it counts backward passes, and its step waits for reduced gradients."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.exchange import Exchange


class Distributed(torch.optim.Optimizer):
    """The methods that every distributed optimizer has; mixed into the class of the given one."""

    def _set_up(self, exchange: Exchange, backward_passes_per_step: int) -> None:
        self._exchange = exchange
        self._named = named = exchange.named
        self.backward_passes_per_step = backward_passes_per_step
        self._begin_anew()
        self._synchronized = False
        self._should_synchronize = True
        self._alone = exchange.process_set.size() == 1
        if not self._alone:
            exchange.bind()
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
        """A gradient is complete: it can leave."""
        self._exchange.bind()
        self._finals.append(number)
        self._exchange.send(number, self._finals)

    # Between the backward pass and the update.

    def synchronize(self) -> None:
        """Wait until every gradient is reduced and stands in ``parameter.grad``.

        Call it yourself to do something with the reduced gradients (clip them), and then ``step()`` within
        :meth:`skip_synchronize`. A parameter that only some ranks have used counts as zero on the others; one that no
        rank has used keeps no gradient.
        """
        if self._alone:
            return
        knew_no_order = self._exchange.finish()
        finals = self._finals
        self._begin_anew()
        self._synchronized = True
        if knew_no_order:
            self._exchange.agree(finals)

    def _begin_anew(self) -> None:
        """Await as many backward passes as before the first step."""
        self._finals: list[int] = []  # numbers in the order in which their gradients became final, in this step
        self._left = [self.backward_passes_per_step] * len(self._named.parameters)

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
            mean = ops.allreduce(value, name=f"{self._exchange.title}.loss", process_set=self._exchange.process_set)
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
