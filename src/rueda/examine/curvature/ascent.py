"""The loss and its gradient at points near a model, for methods that search the highest loss by gradient ascent."""

from __future__ import annotations

import torch
from torch import Tensor

from rueda.examine.curvature.product import backward_chunk, check_finite_loss, flat, share_of_loss
from rueda.examine.objective.objective import Objective
from rueda.examine.objective.reproducible_sum import ReproducibleSum
from rueda.world import World


class Ascent:
    """The objective and its gradient at origin + y, for flat vectors y [n] in float64; use it in a ``with`` block.

    Args:
        objective: the function; its point at the beginning of the block is the origin.
        world: the workers that share the examples; all must evaluate the same points.

    >>> from torch import nn
    >>> model = nn.Linear(1, 1, bias=False).double()
    >>> _ = model.weight.data.fill_(3.0)
    >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    >>> half_square = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> with Ascent(Objective(model, half_square, x, torch.zeros_like(x))) as ascent:  # f(w) = 1.25 w²
    ...     ascent.loss, ascent.at(torch.tensor([1.0], dtype=torch.float64))
    (11.25, (20.0, tensor([10.], dtype=torch.float64)))
    """

    def __init__(self, objective: Objective, *, world: World | None = None) -> None:
        self.objective = objective
        self._chunk = backward_chunk(objective)
        self._sum = ReproducibleSum(objective.num_examples, self._chunk, world=world)

    def __enter__(self) -> Ascent:
        self.objective.__enter__()
        try:
            self.origin = self.objective.flatten(self.objective.leaves)
            self.loss, self.gradient = self.at(torch.zeros_like(self.origin))
            check_finite_loss(self.loss, self.gradient)
        except BaseException:
            self.objective.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.objective.set(self.origin)
        self.objective.__exit__()

    def at(self, y: Tensor) -> tuple[float, Tensor]:
        """Return loss and gradient at origin + y."""
        self.objective.set(self.origin + y.to(self.origin))

        def one(start: int) -> Tensor:
            total = share_of_loss(self.objective, start, self._chunk)
            parameters = self.objective.leaves
            slopes = torch.autograd.grad(total, parameters, allow_unused=True)
            return torch.cat([total.detach().reshape(1).double(), flat(slopes, parameters)])

        found = self._sum(one, len(self.origin) + 1, self.origin.device)
        return float(found[0]), found[1:]
