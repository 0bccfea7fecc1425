"""The tensors of a lane as one matrix, so that one kernel scales each tensor by a number of its own.

``torch._foreach_mul_`` with a factor for each tensor launches one kernel for each of them if the factors are on the
device, and reading them on the host waits for the device. So the tensors are copied into a matrix of short rows, each
of which belongs to one tensor, and a vector of one number per tensor is spread over the rows::

    tensors of 300 and 100 elements      rows of 256           numbers a, b
    [300], [100]                     ->  [3, 256]          x   [a, a, b]

One multi-tensor copy fills the matrix and one writes it back. The elements that fill up the last row of a tensor are
never initialised; no operation mixes them with others. A slot whose name has two letters holds two such matrices, the
planes ``[2, rows, ROW]``: one kernel serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rueda.optim.engine.lanes import Lane, is_dense

ROW = 256
_MOST_KEPT = 64


class Blocks:
    """The layout of a lane's tensors in a matrix, and views of them in it.

    Args:
        tensors: the local parts of the parameters.
        scratch: returns the memory of a slot for a number of elements, the same at every call.

    >>> tensors, memory = [torch.ones(300), torch.ones(2, 2)], {}
    >>> blocks = Blocks(tensors, lambda slot, size: memory.setdefault(slot, torch.empty(size)))
    >>> blocks.gather({"g": tensors})
    >>> (factors,) = blocks.spread(torch.tensor([2.0, 3.0]))
    >>> blocks.matrix("g").mul_(factors).shape, blocks.views("g")[1]
    (torch.Size([3, 256]), tensor([[3., 3.],
            [3., 3.]]))
    """

    def __init__(self, tensors: Sequence[Tensor], scratch: Callable[[str, int], Tensor]) -> None:
        first = tensors[0]
        self.dtype = first.dtype if first.dtype == torch.float64 else torch.float32
        self._device, self._scratch = first.device, scratch
        self._shapes = [(t.shape, t.stride() if is_dense(t) else None, t.numel()) for t in tensors]
        rows = [-(-t.numel() // ROW) for t in tensors]
        self._starts = [0]
        for count in rows:
            self._starts.append(self._starts[-1] + count)
        owners = [number for number, count in enumerate(rows) for _ in range(count)]
        self._owners = torch.tensor(owners, dtype=torch.int64, device=self._device)
        self._vectors: dict[tuple[object, ...], Tensor] = {}
        self._views: dict[str, tuple[Tensor, list[Tensor]]] = {}

    def gather(self, slots: Mapping[str, Sequence[Tensor]]) -> None:
        """Copy tensors into slots, by one kernel if all have the same dtype; a slot may have further planes."""
        pairs = [(self.views(slot)[: len(tensors)], list(tensors)) for slot, tensors in slots.items()]
        if len({tensors[0].dtype for _, tensors in pairs}) == 1:
            pairs = [([view for views, _ in pairs for view in views], [one for _, tensors in pairs for one in tensors])]
        for views, tensors in pairs:
            torch._foreach_copy_(views, tensors)

    def matrix(self, slot: str) -> Tensor:
        """Return the (first) matrix of a slot, [rows, ROW]."""
        return self.planes(slot)[0]

    def planes(self, slot: str) -> Tensor:
        """Return all matrices of a slot, one for each letter of its name, [planes, rows, ROW]."""
        return self._memory(slot)[: len(slot) * self._starts[-1] * ROW].view(len(slot), -1, ROW)

    def scatter(self, slot: str, tensors: Sequence[Tensor]) -> None:
        """Copy the matrices of a slot into the tensors."""
        torch._foreach_copy_(list(tensors), self.views(slot))

    def views(self, slot: str) -> list[Tensor]:
        """Return the tensors in the matrices of a slot, in the shapes and memory layouts of the parameters."""
        memory = self._memory(slot)
        kept = self._views.get(slot)
        if kept is None or kept[0] is not memory:
            kept = self._views[slot] = memory, [
                memory[(first + start) * ROW :][:count].view(shape) if stride is None
                else memory.as_strided(shape, stride, (first + start) * ROW)
                for first in range(0, len(slot) * self._starts[-1], self._starts[-1])
                for (shape, stride, count), start in zip(self._shapes, self._starts, strict=False)
            ]  # fmt: skip
        return kept[1]

    def spread(self, *numbers: Tensor) -> tuple[Tensor, ...]:
        """Return each vector of one number per tensor as a column of one number per row, [rows, 1]."""
        return self.spread_table(torch.stack(numbers) if len(numbers) > 1 else numbers[0].unsqueeze(0)).unbind()

    def spread_table(self, table: Tensor) -> Tensor:
        """Return a table of vectors, [vectors, tensors], as columns of one number per row, [vectors, rows, 1]."""
        return table.to(self.dtype).index_select(1, self._owners).unsqueeze(2)

    def constant(self, *values: float, like: Tensor) -> Tensor:
        """Return values as a vector on the device, or one value as a scalar; they are copied there only once."""
        key = (like.dtype, *values)
        if key not in self._vectors:
            given = values if len(values) > 1 else values[0]
            self._vectors[key] = torch.tensor(given, dtype=like.dtype, device=self._device)
        return self._vectors[key]

    def _memory(self, slot: str) -> Tensor:
        return self._scratch(slot, len(slot) * self._starts[-1] * ROW)


class KeptBlocks:
    """The layouts of an optimizer's lanes, and the memory that the lanes use one after another."""

    def __init__(self) -> None:
        self._blocks: dict[Any, Blocks] = {}
        self._lines: dict[Any, Tensor] = {}

    def blocks(self, lane: Lane) -> Blocks:
        """Return the layout of a lane, which is kept as long as the shapes stay the same."""
        first = lane.params[0]
        wide = torch.float64 if first.dtype == torch.float64 else torch.float32
        if torch.compiler.is_compiling():
            fresh: dict[str, Tensor] = {}
            return Blocks(lane.params, lambda slot, size: fresh.setdefault(slot, first.new_empty(size, dtype=wide)))
        key = (first.device, first.dtype, *((p.shape, p.stride()) for p in lane.params))
        if key not in self._blocks:
            if len(self._blocks) >= _MOST_KEPT:  # gradients that come and go make new lanes
                self._blocks.clear()
            self._blocks[key] = Blocks(lane.params, partial(self._line, first.device, wide))
        return self._blocks[key]

    def _line(self, device: torch.device, dtype: torch.dtype, slot: str, size: int) -> Tensor:
        line = self._lines.get((device, dtype, slot))
        if line is None or line.numel() < size:
            line = self._lines[device, dtype, slot] = torch.empty(size, dtype=dtype, device=device)
        return line

    def __reduce__(self) -> tuple[type[KeptBlocks], tuple[()]]:
        return KeptBlocks, ()  # a copy of an optimizer begins with none
