"""Exact Hessian-vector products, from which eigenvalues, trace and density are computed.

The Hessian H of the mean loss has n x n entries and is never formed. A product with a vector costs about two gradients
(Pearlmutter 1994, *Fast exact multiplication by the Hessian*):

    H v = d/dw < g(w), v >,    g the gradient

All methods here need many products *at one point*. So the graph of the gradient is built once for each chunk of
examples and kept; each product is then one backward pass through it, in which the layers of a CNN use fast kernels
(:mod:`rueda.examine.curvature.second_derivatives`). Graphs are kept as long as they fit ``memory_bytes``; the other
chunks build theirs anew for each product, with the same numbers.

Batch norm uses its running statistics (evaluation mode): they are constants of the function whose curvature is taken.

With several workers each takes some of the chunks; the numbers are the same to the last bit
(:mod:`rueda.examine.objective.reproducible_sum`).
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
from rueda.examine.objective.reproducible_sum import ReproducibleSum
from rueda.world import World

MEMORY_BYTES = 2 << 30
"""the default memory for graphs that are kept"""
LARGEST_CHUNK = 128
"""a backward pass needs larger chunks than a forward pass, since it makes more and smaller kernel calls"""

Product = Callable[[Tensor], Tensor]
"""from a vector [n] to the product of a symmetric matrix with it, [n]"""


class CurvatureProduct:
    """The Hessian of an objective at its current point, as a function from vectors [n] to vectors [n].

    Use it in a ``with`` block: its parameters must not be changed inside. Vectors have the type of the
    model's parameters; the sums over chunks are formed in float64.

    Args:
        objective: the function.
        chunk: examples per graph; by default those of a forward pass, or up to 16 times as many while below 128.
        memory_bytes: the memory for graphs that are kept.
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
        self._sum = ReproducibleSum(objective.num_examples, self.chunk, world=world)

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
        """Return H times a vector, [n] -> [n]."""
        # In the parameters' own memory format: converting from another one takes a tenth of the product's time.
        pairs = zip(self._parameters, self.objective.split(vector), strict=True)
        self._vector[:] = [torch.empty_like(one, requires_grad=False).copy_(part) for one, part in pairs]
        product = self._sum(self._backward, self.size, self.device)
        self.num_products += 1
        # A finite sum implies finite entries; checking each of them would take longer.
        if not math.isfinite(float(product.sum())) and not bool(torch.isfinite(product).all()):
            expected, do = "finite numbers", "examine a checkpoint from before it diverged, or use float64"
            raise ExamineError("the Hessian", expected=expected, got="NaN or infinity in a product with it", do=do)
        return product.to(self.dtype)

    def _build(self) -> tuple[float, Tensor]:
        """Compute loss and gradient over all chunks, and keep the graphs that fit the memory."""
        num_kept = self._memory_bytes // max(1, self._bytes_per_example() * self.chunk)

        def visit(start: int) -> Tensor:
            total, slopes = self._slopes(start, self.chunk)
            if len(self._kept) < num_kept:
                self._kept[start] = self._along(slopes)
            return torch.cat([total.detach().reshape(1).double(), flat(slopes, self._parameters)])

        found = self._sum(visit, self.size + 1, self.device)
        check_finite_loss(float(found[0]), found[1:])
        return float(found[0]), found[1:].to(self.dtype)

    def _bytes_per_example(self) -> int:
        """Measure the memory of a gradient's graph on two examples, without the parameters, which exist anyway."""
        held: dict[int, int] = {}
        own = {one.untyped_storage().data_ptr() for one in self._parameters}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                held[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()  # keeping the tensor itself could make a reference cycle with its graph

        num_probed = min(2, self.objective.num_examples)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            _ = self._slopes(0, num_probed)
        return sum(held.values()) // num_probed

    def _slopes(self, start: int, length: int) -> tuple[Tensor, list[Tensor | None]]:
        with FastSecondDerivatives():
            total = share_of_loss(self.objective, start, length)
        return total, list(torch.autograd.grad(total, self._parameters, create_graph=True, allow_unused=True))

    def _along(self, slopes: Sequence[Tensor | None]) -> Tensor:
        """Return the scalar <slopes, vector> as a graph for any later vector; without a graph if the loss is linear."""
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
    """The scalar <slopes, vector>; only its derivative is used: the vector at the time of the backward pass.

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


def check_finite_loss(loss: float, gradient: Tensor) -> None:
    """Raise an error if the loss or its gradient contains NaN or infinity."""
    if not (math.isfinite(loss) and bool(torch.isfinite(gradient).all())):
        do = "examine a checkpoint from before it diverged"
        raise ExamineError("the loss and its gradient", expected="finite numbers", got=f"loss {loss}", do=do)


def share_of_loss(objective: Objective, start: int, length: int) -> Tensor:
    """Return the contribution of ``length`` examples from ``start`` on to the mean loss, a scalar."""
    stop = min(start + length, objective.num_examples)
    outputs = objective.outputs(take(objective.inputs, start, stop))
    return objective.total(outputs, objective.targets[start:stop]) / objective.num_examples


def backward_chunk(objective: Objective) -> int:
    """Return the number of examples per backward pass."""
    return min(objective.num_examples, max(objective.chunk, min(LARGEST_CHUNK, 16 * objective.chunk)))


def flat(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """Concatenate gradients to one vector [n] in float64; a parameter without a gradient gets zeros."""
    joined = torch.zeros(sum(one.numel() for one in like), dtype=torch.float64, device=like[0].device)
    places = torch.split(joined, [one.numel() for one in like])
    for part, one, place in zip(tensors, like, places, strict=True):
        if part is not None:
            place.view(one.shape).copy_(part.detach())  # converts, and changes the memory order, in one pass
    return joined
