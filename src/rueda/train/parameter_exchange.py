"""Exchanges of parameters instead of gradients: local SGD, post-local SGD and DiLoCo.

Between two exchanges each of N workers makes H = ``sync_every`` updates x_k of its own, with its own gradients and its
own optimizer state, and sends nothing. An exchange replaces the parameters of all workers:

    average     x <- mean(x_k)
    nesterov    g = x - mean(x_k),  m <- mu m + g,  x <- x - eta (g + mu m)

where x on the right are the parameters that the last exchange made, the *anchor*. The first is local SGD (Stich 2018,
1805.09767), the second DiLoCo (Douillard et al. 2023, 2311.08105); with eta = 1 and mu = 0 they are the same.
Post-local SGD (Lin et al. 2018, 1808.07217) averages gradients at every update until ``sync_from_epoch``.

With ``sync_fragments`` = F the parameters are divided into F fragments of consecutive layers, which are exchanged one
at a time, H / F updates apart (streaming DiLoCo, Douillard et al. 2025, 2501.18512): the same bytes, at an Fth of the
peak. With ``sync_delay`` = tau an exchange overlaps with computation, as in that paper: it begins after update t, with
the parameters of that moment, and its result is used after update t + tau:

    x' of mean(x_k(t)) by one of the two formulas above;  x_k(t + tau) <- alpha x_k(t + tau) + (1 - alpha) x'

so that a worker keeps the share alpha = ``sync_mix`` of what it has computed meanwhile. Without a delay x_k <- x'.

The anchors, and the outer optimizer's momentum, are the same on all workers at all times. They are what workers compare
(:mod:`rueda.train.comparison`) and part of a checkpoint, which waits for exchanges that are under way.

torch's ``PeriodicModelAverager`` is local SGD alone: it has neither an outer optimizer nor fragments nor a delay, and
averages the model of a process, not those of virtual workers; the numbers are the same. The outer step is
``torch.optim.SGD``. torchft's ``DiLoCo`` computes the same numbers, but exchanges through a manager that needs a
service of its own, requires that F divides H, and knows no workers in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rueda.records import Recipe

BeginMean = Callable[[list[Tensor]], Callable[[], Tensor]]
"""takes a vector of each worker of this process and begins their mean over all workers, which all call it in the same
order; the function that it returns waits for the mean"""


class UnderWay(NamedTuple):
    """An exchange that has begun and whose result is not used yet."""

    fragment: int
    due: int
    """the updates after which its result is used"""
    mean: Callable[[], Tensor]
    """waits for the mean of the workers' parameters"""


def fragments(sizes: Sequence[int], num_fragments: int) -> list[range]:
    """Divide consecutive tensors into fragments of about equal size; fewer if there are fewer tensors.

    A tensor belongs to the fragment in which its middle lies; a fragment without a tensor takes the next one.

    >>> fragments([4, 4, 4, 12], 2), fragments([1, 100], 3)
    ([range(0, 3), range(3, 4)], [range(0, 1), range(1, 2)])
    """
    count, total = min(num_fragments, len(sizes)), sum(sizes)
    ends: list[int] = []
    done = 0
    for number in range(1, count):
        first, last = (ends[-1] if ends else 0) + 1, len(sizes) - (count - number)
        end = ends[-1] if ends else 0
        while end < last and (end < first or done + sizes[end] / 2 <= total * number / count):
            done += sizes[end]
            end += 1
        ends.append(end)
    return [range(start, stop) for start, stop in zip([0, *ends], [*ends, len(sizes)], strict=True)]


class ParameterExchange:
    """Knows when which fragment is exchanged, and makes the new parameters of the mean of the workers'.

    Args:
        recipe: the interval, the fragments and the outer optimizer.
        parameters: the trained parameters by name, the same on all workers.

    >>> recipe = Recipe(workers=2, sync_every=4, sync_fragments=2, outer_optimizer="nesterov")
    >>> weights = {name: nn.Parameter(torch.ones(1)) for name in ("first", "last")}
    >>> exchange = ParameterExchange(recipe, weights)
    >>> [(update, exchange.due(update)) for update in (2, 4)]  # the last layer after update 2, the first after 4
    [(2, [1]), (4, [0])]
    >>> exchange.exchange(2, [weights], lambda own: lambda: own[0] - 1)  # all have moved by 1 on average
    True
    >>> round(weights["last"].item(), 4)  # 1 - 0.7 (1 + 0.9)
    -0.33
    """

    def __init__(self, recipe: Recipe, parameters: Mapping[str, Tensor]) -> None:
        self._recipe = recipe
        self.anchors = {name: one.detach().clone() for name, one in parameters.items()}
        """the parameters that the last exchange made, by name"""
        names, sizes = list(self.anchors), [one.nbytes for one in self.anchors.values()]
        self.fragments = [[names[index] for index in part] for part in fragments(sizes, recipe.sync_fragments)]
        """the names of the parameters of each fragment"""
        self.under_way: list[UnderWay] = []
        """the exchanges that have begun, in this order"""
        self._own_share = recipe.sync_mix if recipe.sync_delay > 0 else 0.0
        self._outer: torch.optim.SGD | None = None
        if recipe.outer_optimizer == "nesterov":
            momentum = recipe.outer_momentum
            self._outer = torch.optim.SGD(
                list(self.anchors.values()), lr=recipe.outer_rate, momentum=momentum, nesterov=momentum > 0
            )

    def due(self, num_updates: int) -> list[int]:
        """Return the fragments whose exchange begins after so many updates: k, k H / F updates after the first one."""
        every, count = self._recipe.sync_every, len(self.fragments)
        return [number for number in range(count) if num_updates % every == number * every // count]

    @torch.no_grad()
    def exchange(
        self, num_updates: int, workers: Sequence[Mapping[str, nn.Parameter]], begin_mean: BeginMean
    ) -> bool:  # fmt: skip
        """Begin the exchanges that are due, and use the results of those that began ``sync_delay`` updates ago.

        Args:
            num_updates: the updates made so far.
            workers: the parameters of each worker of this process, which are replaced.
            begin_mean: begins the mean over all workers.

        Returns:
            False if a worker's parameters, in what was used, are not finite.
        """
        for number in self.due(num_updates):
            names = self.fragments[number]
            mean = begin_mean([flat([own[name] for name in names]) for own in workers])
            self.under_way.append(UnderWay(number, num_updates + self._recipe.sync_delay, mean))
        is_finite = True
        while self.under_way and self.under_way[0].due <= num_updates:
            first = self.under_way.pop(0)
            is_finite &= self._replace_anchors(first.fragment, first.mean())
            for own in workers:
                for name in self.fragments[first.fragment]:
                    self._move_to_anchor(own[name], self.anchors[name])
        return is_finite

    def _move_to_anchor(self, own: Tensor, anchor: Tensor) -> None:
        if self._own_share == 0:
            own.copy_(anchor)  # also where a number of its own is not finite
        else:
            own.mul_(self._own_share).add_(anchor, alpha=1 - self._own_share)

    def wait(self) -> None:
        """Wait for the exchanges that are under way; their results are used when they are due, as without waiting."""
        self.under_way = [one._replace(mean=_already(one.mean())) for one in self.under_way]

    def _replace_anchors(self, fragment: int, mean: Tensor) -> bool:
        """Make a fragment's next anchors of the mean of the workers' parameters; return whether that is finite."""
        anchors = [self.anchors[name] for name in self.fragments[fragment]]
        for anchor, part in zip(anchors, torch.split(mean, [one.numel() for one in anchors]), strict=True):
            if self._outer is None:
                anchor.copy_(part.view_as(anchor))
            else:
                anchor.grad = anchor - part.view_as(anchor)
        if self._outer is not None:
            self._outer.step()  # the other fragments have no gradient, and stay
            self._outer.zero_grad(set_to_none=True)
        return bool(torch.isfinite(mean.sum()))

    def state_dict(self) -> dict[str, Any]:
        """Return the anchors, the state of the outer optimizer and the results of the exchanges under way."""
        self.wait()
        return {
            "anchors": self.anchors,
            "outer": None if self._outer is None else self._outer.state_dict(),
            "under_way": [{"fragment": one.fragment, "due": one.due, "mean": one.mean()} for one in self.under_way],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over saved anchors, and the momentum if there is one; the outer rate and momentum stay the recipe's."""
        with torch.no_grad():
            for name, anchor in self.anchors.items():
                anchor.copy_(state["anchors"][name])
        if self._outer is not None and state["outer"] is not None:
            groups = self._outer.state_dict()["param_groups"]
            saved = {key: {name: _copied(value) for name, value in one.items()}
                     for key, one in state["outer"]["state"].items()}  # fmt: skip
            self._outer.load_state_dict({"state": saved, "param_groups": groups})
        device = next(iter(self.anchors.values())).device
        self.under_way = [
            UnderWay(one["fragment"], one["due"], _already(one["mean"].to(device, copy=True)))
            for one in state.get("under_way", [])  # a checkpoint of an older Rueda has none
        ]


def _already(mean: Tensor) -> Callable[[], Tensor]:
    return lambda: mean


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one vector.

    >>> flat([torch.zeros(2, 2), torch.ones(1)]).tolist()
    [0.0, 0.0, 0.0, 0.0, 1.0]
    """
    return torch.cat([one.detach().reshape(-1) for one in tensors])


@torch.no_grad()
def write_flat(tensors: Sequence[Tensor], values: Tensor) -> None:
    """Copy a vector of :func:`flat` back into tensors."""
    for one, part in zip(tensors, torch.split(values, [one.numel() for one in tensors]), strict=True):
        one.copy_(part.view_as(one))
