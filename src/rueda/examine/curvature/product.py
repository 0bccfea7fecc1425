"""Products with the Hessian, exact and many: what eigenvalues, trace and density are made of.

The Hessian H of the mean loss has n x n entries and is never formed. A product with a vector costs about two gradients
(Pearlmutter 1994, *Fast exact multiplication by the Hessian*):

    H v = d/dw < g(w), v >,    g the gradient

All questions here ask for many products *at one point*. So the graph of the gradient is built once for a chunk of
examples and kept; each product is then one backward pass through it, in which the layers of a CNN take their fast paths
(:mod:`rueda.examine.curvature.second_derivatives`). Graphs are kept as long as they fit ``memory_bytes``; the other
chunks build theirs anew for each product, with the same numbers.

Batch norm uses its running statistics (evaluation mode): they are constants of the function whose curvature is taken.

With several workers each takes some of the chunks; the numbers are the same to the last bit
(:mod:`rueda.examine.objective.strands`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rueda.errors import ExamineError
from rueda.examine.curvature.second_derivatives import FastSecondDerivatives
from rueda.examine.objective.examples import take
from rueda.examine.objective.objective import Objective
from rueda.examine.objective.strands import Strands
from rueda.world import World

MEMORY_BYTES = 2 << 30
"""graphs that are kept, by default"""
LARGEST_CHUNK = 128
"""a backward pass wants longer chunks than a forward pass, since it has more and smaller calls to make"""

Product = Callable[[Tensor], Tensor]
"""from a vector [n] to the product of a symmetric matrix with it, [n]"""


class CurvatureProduct:
    """The Hessian of an objective at its current point, as a function from vectors [n] to vectors [n].

    Use it in a ``with`` block: the model is borrowed and must not be moved meanwhile. Vectors have the type of the
    model's parameters; the sums over chunks are formed in float64.

    Args:
        objective: the function.
        chunk: examples a graph; by default those of a forward pass, or up to 16 times as many while below 128.
        memory_bytes: how much graphs may be kept for.
        world: the workers that share the examples; all must call with the same vectors.

    >>> from torch import nn
    >>> model = nn.Linear(2, 1, bias=False).double()
    >>> x = torch.tensor([[2.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    >>> half_square = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> objective = Objective(model, half_square, x, torch.zeros(2, 1))  # H = diag(4, 16) / 2
    >>> with CurvatureProduct(objective) as hessian:
    ...     hessian(torch.ones(2, dtype=torch.float64))
    tensor([2., 8.], dtype=torch.float64)
    """

    def __init__(
        self,
        objective: Objective,
        *,
        chunk: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        world: World | None = None,
    ) -> None:
        self.objective = objective
        self._parameters = objective.leaves
        self.size = objective.num_parameters
        self.dtype, self.device = objective.dtype, objective.device
        self.num_products = 0
        self.chunk = chunk or backward_chunk(objective)
        self._memory_bytes = memory_bytes
        self._vector: list[Tensor] = []
        self._kept: dict[int, Tensor] = {}
        self._strands = Strands(objective.num_examples, self.chunk, world=world)

    def __enter__(self) -> CurvatureProduct:
        self.objective.__enter__()
        try:
            self.loss, self.gradient = self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._kept.clear()
        self._vector.clear()
        self.objective.__exit__()

    def __call__(self, vector: Tensor) -> Tensor:
        """Multiply, [n] -> [n]."""
        # In the parameters' own memory order: another one costs a tenth of the product in conversions.
        pairs = zip(self._parameters, self.objective.split(vector), strict=True)
        self._vector[:] = [torch.empty_like(one, requires_grad=False).copy_(part) for one, part in pairs]
        product = self._strands.sum(self._backward, self.size, self.device)
        self.num_products += 1
        # One that is not finite leaves no sum finite; looking at each would take longer.
        if not math.isfinite(float(product.sum())) and not bool(torch.isfinite(product).all()):
            raise ExamineError(
                "the Hessian",
                expected="finite numbers",
                got="NaN or infinity in a product with it",
                do="examine a checkpoint from before it diverged, or use float64",
            )
        return product.to(self.dtype)

    def _build(self) -> tuple[float, Tensor]:
        """Walk the chunks once: loss and gradient, and the graphs that fit."""
        num_kept = self._memory_bytes // max(1, self._bytes_per_example() * self.chunk)

        def visit(start: int) -> Tensor:
            total, slopes = self._slopes(start, self.chunk)
            if len(self._kept) < num_kept:
                self._kept[start] = self._along(slopes)
            return torch.cat([total.detach().reshape(1).double(), flat(slopes, self._parameters)])

        found = self._strands.sum(visit, self.size + 1, self.device)
        loss = float(found[0])
        if not bool(torch.isfinite(found).all()):
            raise ExamineError(
                "the loss and its gradient",
                expected="finite numbers",
                got=f"loss {loss} with NaN or infinity",
                do="examine a checkpoint from before it diverged",
            )
        return loss, found[1:].to(self.dtype)

    def _bytes_per_example(self) -> int:
        """Measure what the graph of a gradient holds, on two examples; parameters, which are there anyway, left out."""
        held: dict[int, int] = {}
        own = {one.untyped_storage().data_ptr() for one in self._parameters}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                held[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()  # the tensor itself could hold its own graph in a circle

        num_probed = min(2, self.objective.num_examples)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            _ = self._slopes(0, num_probed)
        return sum(held.values()) // num_probed

    def _slopes(self, start: int, length: int) -> tuple[Tensor, list[Tensor | None]]:
        with FastSecondDerivatives():
            total = share_of_loss(self.objective, start, length)
        return total, list(torch.autograd.grad(total, self._parameters, create_graph=True, allow_unused=True))

    def _along(self, slopes: Sequence[Tensor | None]) -> Tensor:
        """Give the scalar <slopes, vector> of whatever vector there will be; 0 without a graph if none is curved."""
        curved = [None if slope is None or not slope.requires_grad else slope for slope in slopes]
        return _Along.apply(self._vector, *curved)  # type: ignore[no-any-return, no-untyped-call]

    def _backward(self, start: int) -> Tensor:
        kept = self._kept.get(start)
        along = self._along(self._slopes(start, self.chunk)[1]) if kept is None else kept
        if not along.requires_grad:  # a linear function has no curvature
            return torch.zeros(self.size, dtype=torch.float64, device=self.device)
        curved = torch.autograd.grad(along, self._parameters, retain_graph=kept is not None, allow_unused=True)
        return flat(curved, self._parameters)


class _Along(torch.autograd.Function):
    """<slopes, vector>, of which only the derivative is wanted: the vector, as it stands when that is taken.

    ``torch.autograd.grad`` with ``grad_outputs`` would do, but its first call loads a package for symbolic algebra.
    """

    @staticmethod
    def forward(context: Any, vector: list[Tensor], *slopes: Tensor | None) -> Tensor:
        context.vector = vector
        return next((slope.new_zeros(()) for slope in slopes if slope is not None), torch.zeros(()))

    @staticmethod
    def backward(context: Any, *_: Tensor) -> tuple[Any, ...]:
        pairs = zip(context.vector, context.needs_input_grad[1:], strict=True)
        return None, *(part if wanted else None for part, wanted in pairs)


def share_of_loss(objective: Objective, start: int, length: int) -> Tensor:
    """Give what ``length`` examples from ``start`` on contribute to the mean loss: a scalar."""
    stop = min(start + length, objective.num_examples)
    outputs = objective.outputs(take(objective.inputs, start, stop))
    return objective.total(outputs, objective.targets[start:stop]) / objective.num_examples


def backward_chunk(objective: Objective) -> int:
    """Choose how many examples pass through the model at a time where gradients are needed."""
    return min(objective.num_examples, max(objective.chunk, min(LARGEST_CHUNK, 16 * objective.chunk)))


def flat(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """Join slopes to one vector [n] in float64; a parameter without a slope has zeros."""
    joined = torch.zeros(sum(one.numel() for one in like), dtype=torch.float64, device=like[0].device)
    places = torch.split(joined, [one.numel() for one in like])
    for part, one, place in zip(tensors, like, places, strict=True):
        if part is not None:
            place.view(one.shape).copy_(part.detach())  # converts, and changes the memory order, in one pass
    return joined
