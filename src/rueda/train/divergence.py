"""Divergence: gradients or weights that are no longer finite, and what a training does then.

Once an activation, the loss or a weight is NaN or infinite, the chain rule carries it into the gradient of every layer
below. Two small tensors therefore show it: the first one, which lies at the end of the backward pass, and the last one,
whose gradient is that of the outputs. Their sums are tested at every update, after the gradients were averaged over the
workers: all workers have the same averaged gradient, so all come to the same answer without a further collective. If
the recipe clips gradients, the norm of the whole gradient is known anyway and is tested instead. Workers that have
parts of one model have parts of the gradient as well: they sum up what they test.

On a CPU the number is read before the update is made. On a GPU that would make the host wait for the device; there the
number is copied to pinned memory and read one update later. What the test misses, such as an infinite weight behind a
saturated activation, is found when a checkpoint is written, for which all weights are tested
(:func:`nonfinite_in_state`): a checkpoint never holds weights that are not finite.

The recipe's ``on_divergence`` says what follows:

- ``stop``: the training ends with the status ``diverged``,
- ``skip``: an update whose gradient is not finite is left out; too many in a row end the training,
- ``roll-back``: the training goes back to its last checkpoint and continues at half the rate, a few times at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from rueda.errors import NonFiniteError
from rueda.optim.engine.lanes import local
from rueda.optim.engine.late import LateFlags

MOST_SKIPPED = 50
"""updates in a row that may be left out; fp16's loss scaling needs up to 40 to find its scale"""
MOST_ROLL_BACKS = 3
"""how often a training goes back to its last checkpoint before it is given up"""
ROLL_BACK_FACTOR = 0.5
"""what the learning rate is multiplied by each time"""
ADVICE = "lower the learning rate, warm up, or clip the gradients"
_SMALL = 4096
"""elements of a tensor that is tested at every update"""


class FiniteTest:
    """Tests at every update whether the averaged gradients are finite.

    Args:
        model: the model whose trainable parameters are tested.
        most_skipped: failures in a row that are tolerated, since the updates are left out; 0 tolerates none.
    """

    def __init__(self, model: nn.Module, most_skipped: int = 0) -> None:
        self._named = {
            name.replace("_orig_mod.", ""): one for name, one in model.named_parameters() if one.requires_grad
        }
        tensors = list(self._named.values())
        small = [tensor for tensor in tensors if tensor.numel() <= _SMALL]
        small = small or sorted(tensors, key=torch.numel)[:1]
        self._tested = small if len(small) < 2 else [small[0], small[-1]]
        self._most_skipped = most_skipped
        self.forget()

    def forget(self) -> None:
        """Drop what was not yet read, since the training has gone back."""
        self._late = LateFlags()
        self.num_skipped = 0
        """updates in a row, up to the last one, whose gradients were not finite"""

    def check(self, norm: Tensor | None = None) -> bool:
        """Test the gradients after the backward pass, before the update; return False if the update is to be left out.

        Args:
            norm: the norm of the whole gradient, or another number that is finite if the gradient is, if there is one.

        Raises:
            NonFiniteError: this update's gradients, or on a GPU those of the update before, are not finite; the message
                names the first parameter. With ``most_skipped``, only after so many failures in a row.
        """
        number = norm if norm is not None else self._sum()
        if number is None:
            return True
        if number.device.type == "cpu":
            is_finite = math.isfinite(number)
        else:
            before = self._late.take()
            is_finite = not (before or self._late.note([number], number.detach().reshape(1)))
        if is_finite:
            self.num_skipped = 0
            return True
        self.num_skipped += 1
        if self.num_skipped > self._most_skipped:
            raise NonFiniteError(f"{self._found()}: {ADVICE}")
        return False

    def sum_over(self, group: dist.ProcessGroup | None, device: torch.device) -> Tensor:
        """Sum the tested gradients of the workers that have parts of one model, which must all call it.

        Each of them has other numbers, but all must come to the same answer. A norm of the whole gradient, which reads
        every number, is left to recipes that clip.
        """
        own = self._sum()
        total = torch.zeros((), device=device) if own is None else own.detach().to(torch.float32, copy=True)
        dist.all_reduce(total, group=group)
        return total

    def _sum(self) -> Tensor | None:
        sums = [local(tensor.grad).sum() for tensor in self._tested if tensor.grad is not None]
        return None if not sums else sums[0] if len(sums) == 1 else sums[0] + sums[1]

    def _found(self) -> str:
        """Return which parameters are not finite, or else whose gradients are not."""
        gradients = {name: one.grad for name, one in self._named.items() if one.grad is not None}
        for of, tensors in (("", self._named), ("the gradient of ", gradients)):
            if found := nonfinite_tensors(tensors):
                return f"nan or inf in {of}{found}"
        return "a norm that is nan or inf"


def nonfinite_in_state(*parts: object) -> str | None:
    """Return which tensors of models and optimizers are not finite, such as ``0.weight``; None if all are finite.

    Of a model, the parameters and the running statistics of normalisation layers are tested; other buffers may hold
    infinities on purpose, as an attention mask does. Of an optimizer, all of its state is tested.
    """
    tensors: dict[str, Tensor] = {}
    for model in [part for part in parts if isinstance(part, nn.Module)]:
        tensors |= _tested(model)
    names = {id(tensor): name for name, tensor in tensors.items()}
    for optimizer in [part for part in parts if isinstance(part, Optimizer)]:
        for parameter, state in optimizer.state.items():
            of = names.get(id(parameter), "a parameter")
            tensors |= {f"{key} of {of}": value for key, value in state.items() if isinstance(value, Tensor)}
    return nonfinite_tensors(tensors)


def nonfinite_in_contents(model: nn.Module, contents: Mapping[str, Any]) -> str | None:
    """Return which tensors of a checkpoint are not finite, where this worker has parts of the model only.

    Args:
        model: names the tensors that are tested.
        contents: the state of the whole model and of its optimizer, as a checkpoint holds them.
    """
    tensors = {name: contents["model"][name] for name in _tested(model)}
    optimizer = contents["optimizer"]
    for group in optimizer["param_groups"]:
        for name, index in zip(group["param_names"], group["params"], strict=True):
            state = optimizer["state"].get(index, {})
            tensors |= {f"{key} of {name}": value for key, value in state.items() if isinstance(value, Tensor)}
    return nonfinite_tensors(tensors)


def _tested(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model and the running statistics of its normalisation layers, by name."""
    found: dict[str, Tensor] = dict(model.named_parameters())
    for prefix, module in model.named_modules():
        if isinstance(module, _NormBase):
            found |= {f"{prefix}.{name}": buffer for name, buffer in module.named_buffers(recurse=False)}
    return found


def nonfinite_tensors(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that holds NaN or infinity, and how many more do; None if none does."""
    found = []
    for name, tensor in tensors.items():
        if tensor.is_meta:  # of another worker of a pipeline
            continue
        own = local(tensor.detach())
        values = own.coalesce().values() if own.is_sparse else own
        if values.is_floating_point() and not _is_finite(values):
            found.append(name)
    return f"{found[0]} and {len(found) - 1} more" if len(found) > 1 else found[0] if found else None


def _is_finite(values: Tensor) -> bool:
    """Return whether all values are finite.

    A sum with a NaN or an infinity in it is not finite, and takes a fortieth of the time of the test of each value (1
    and 47 ms for 8 million numbers); only if it is not finite, perhaps by overflow, each value is tested.
    """
    wide = torch.float32 if values.dtype.itemsize < 4 else values.dtype
    return math.isfinite(values.sum(dtype=wide)) or bool(torch.isfinite(values).all())
