"""The error of a curvature that comes from which examples were drawn: usually far larger than the numerical one.

The Hessian on N examples is the mean of N Hessians, and other examples would have given another one. To first order an
eigenvalue moves by v' dH v, where v is its eigenvector, so its standard error over draws of N examples is that of the
mean of v' H_n v. The trace is a mean over examples as well. Both are estimated from the examples at hand, which are
divided at random into G groups. With H_g the Hessian of a group's mean loss,

    standard error = standard deviation of (v' H_1 v, ..., v' H_G v) / sqrt(G),    with G - 1 degrees of freedom

The vector must not come from the group on which it is evaluated: the eigenvector of a sample follows its few steepest
examples, whose groups then stand out, and the error comes out 1.5 to 2 times too large (a jackknife over groups: 1.3 to
1.4 times). So for each group it is found on all the others.
For that the groups' Hessians are needed only on a few leading vectors of the search for eigenvalues, V' H_g V. All
groups together cost one product for each vector, and the graphs of the gradient once more.

How well the error predicts the spread over disjoint sets of examples is told in ``docs/curvature.md``.

Not corrected: the largest eigenvalue of a sample is too large on average, since its vector is the one that suits these
examples best. The bias shrinks with 1 / N. So the interval is about the values on other sets of N examples, and not
about the limit for infinitely many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rueda.examine.curvature.product import CurvatureProduct
from rueda.examine.objective.examples import each
from rueda.examine.objective.objective import Objective
from rueda.examine.objective.reproducible_sum import ReproducibleSum
from rueda.world import World

Floats = NDArray[np.float64]
NUM_GROUPS = 16
"""the most groups; the standard error itself is then known to within 18 %"""
NUM_VECTORS = 8
"""leading vectors within which the eigenvectors of the other groups are found"""


@dataclass(frozen=True)
class GroupCurvatures:
    """The Hessians of groups of examples, as seen by a few vectors."""

    matrices: Floats
    """[G, k, k]: V' H_g V of orthonormal vectors V"""
    probes: Floats
    """[G, p]: z' H_g z of probes z"""

    def eigenvalue_errors(self, count: int) -> list[float] | None:
        """Return the standard errors of the largest ``count`` eigenvalues, k at most; None for a single group.

        >>> groups = np.array([1.0, 2.0, 3.0, 6.0]).reshape(4, 1, 1)  # of one vector there is nothing to choose
        >>> GroupCurvatures(groups, np.zeros((4, 0))).eigenvalue_errors(1)
        [1.0801234497346435]
        """
        if len(self.matrices) < 2:
            return None
        others = self.matrices.sum(axis=0) - self.matrices  # [G, k, k], but for a factor
        vectors = np.linalg.eigh(others)[1][:, :, ::-1][:, :, :count]
        curvatures = np.einsum("gia,gij,gja->ga", vectors, self.matrices, vectors)
        return [float(standard_error(column) or 0.0) for column in curvatures.T]

    def trace_error(self) -> float | None:
        """Return the standard error of the trace: exact on the vectors, by the probes' mean outside of them."""
        outside = self.probes.mean(axis=1) if self.probes.shape[1] else 0.0
        return standard_error(np.trace(self.matrices, axis1=1, axis2=2) + outside)


def group_curvatures(
    objective: Objective,
    vectors: Tensor,
    probes: Tensor,
    *,
    num_groups: int = NUM_GROUPS,
    seed: int = 0,
    memory_bytes: int = 0,
    world: World | None = None,
) -> GroupCurvatures:
    """Divide the examples into groups at random and compute the curvature of each along vectors and probes.

    Args:
        objective: the function, at the point at which the curvature is taken.
        vectors: [k, n], orthonormal.
        probes: [p, n].
        num_groups: the number of groups; no more than there are examples.
        seed: the seed of the division into groups.
        memory_bytes: the memory for the graph of a group; without it the graph is rebuilt for each vector.
        world: the workers that share the groups; all must call with the same vectors.

    >>> from torch import nn
    >>> model = nn.Linear(1, 1, bias=False).double()
    >>> x = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    >>> half_square = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> objective = Objective(model, half_square, x, torch.zeros(3, 1))  # the curvatures are 1, 4 and 9
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> sorted(group_curvatures(objective, one, one[:0]).matrices.flatten().tolist())
    [1.0, 4.0, 9.0]
    """
    num_groups, num_vectors = min(num_groups, objective.num_examples), len(vectors)
    order = torch.randperm(objective.num_examples, generator=torch.Generator().manual_seed(seed))
    groups = [part.sort().values.to(objective.device) for part in torch.tensor_split(order, num_groups)]
    length = num_vectors**2 + len(probes)

    def one(number: int) -> Tensor:
        chosen = groups[number]
        part = objective.with_examples(each(lambda tensor: tensor[chosen], objective.inputs), objective.targets[chosen])
        found = torch.zeros(num_groups, length, dtype=torch.float64, device=objective.device)
        with CurvatureProduct(part, memory_bytes=memory_bytes, world=World()) as product:
            rows = [(vectors @ product(vector)).double() for vector in vectors]
            rows += [torch.dot(probe.double(), product(probe).double()).reshape(1) for probe in probes]
        found[number] = torch.cat(rows)
        return found.flatten()

    total = ReproducibleSum(num_groups, 1, world=world)(one, num_groups * length, objective.device)
    values = total.view(num_groups, length).cpu().numpy()
    matrices = values[:, : num_vectors**2].reshape(num_groups, num_vectors, num_vectors)
    return GroupCurvatures((matrices + matrices.transpose(0, 2, 1)) / 2, values[:, num_vectors**2 :])


def standard_error(groups: Floats) -> float | None:
    """Return the standard error of the mean over groups, [G]; None for a single group.

    >>> standard_error(np.array([1.0, 2.0, 3.0, 6.0])), standard_error(np.array([1.0]))
    (1.0801234497346435, None)
    """
    return float(groups.std(ddof=1) / np.sqrt(len(groups))) if len(groups) > 1 else None
