"""Tells whether the workers still have the same parameters.

All workers start from the same parameters and make the same updates, so their parameters stay equal in every bit. A
parameter that the script changes on one rank, an update that depends on the rank, or faulty hardware makes them drift
apart, and the averaged gradients then belong to no model at all. At the end of each epoch one whole number for each
parameter is compared: the sum of its bits as integers, which costs one pass over the parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rueda.world import World

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's bits, read as whole numbers: equal tensors have equal sums, in any order.

    >>> one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])
    >>> bool(checksum(one) == checksum(one.clone())), bool(checksum(one) == checksum(other))
    (True, False)
    """
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return values.contiguous().view(_INTEGERS[values.element_size()]).sum(dtype=torch.int64)


def drift(world: World, model: nn.Module) -> str | None:
    """Compare the parameters of all workers, which must all call it; return a line if they differ, or None."""
    named = [(name, one) for name, one in model.named_parameters() if one.layout == torch.strided and one.numel()]
    if not named:
        return None
    sums = torch.stack([checksum(one) for _, one in named])
    of_workers = torch.stack(list(world.all_gather(sums)))  # [workers, parameters]
    differs = (of_workers != of_workers[0]).cpu()
    if not bool(differs.any()):
        return None
    ranks = [str(rank) for rank, one in enumerate(differs.any(1).tolist()) if one]
    names = [name for (name, _), one in zip(named, differs.any(0).tolist(), strict=True) if one]
    first = dict(named)[names[0]].detach()
    largest = float(max((part - first).abs().max() for part in world.all_gather(first)))
    apart = float(world.all_reduce(torch.tensor(largest, device=world.device), "max"))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"the workers have drifted apart: {names[0]}{more} of rank{'s' * (len(ranks) > 1)} {', '.join(ranks)} "
        f"differ from rank 0's, by up to {apart:.3g}; look for code that depends on the rank, or that changes "
        "parameters outside of the update"
    )
