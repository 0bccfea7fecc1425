from __future__ import annotations

import pytest
import torch

from rueda.nn.ghost_sizes import ghost_sizes
from rueda.nn.ghosts import chain_average_, chain_weights, cumulative_average


@pytest.mark.parametrize(
    ("num_examples", "ghost", "values", "sizes"),
    [
        (128, 32, 1, (32, 32, 32, 32)),
        (128, 50, 1, (50, 50, 28)),
        (129, 64, 1, (64, 65)),  # one value alone has no variance: merged
        (129, 64, 4, (64, 64, 1)),  # one example of four values has one
        (1, 64, 1, (1,)),  # nothing to merge with: left for torch to refuse
        (0, 64, 1, ()),
    ],
)
def test_ghost_sizes(num_examples: int, ghost: int, values: int, sizes: tuple[int, ...]) -> None:
    assert ghost_sizes(num_examples, ghost, values) == sizes
    assert sum(sizes) == num_examples


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.37, 1.0])
@pytest.mark.parametrize("num_ghosts", [1, 2, 17])
def test_the_closed_form_is_the_chain(momentum: float, num_ghosts: int) -> None:
    torch.manual_seed(0)
    start, observed = torch.randn(5, dtype=torch.float64), torch.randn(num_ghosts, 5, dtype=torch.float64)
    chain = start.clone()
    for each in observed:
        chain = (1 - momentum) * chain + momentum * each
    weights = chain_weights(observed, momentum)
    torch.testing.assert_close(chain_average_(start, observed, weights, momentum), chain, rtol=1e-13, atol=1e-13)


def test_the_cumulative_average_is_the_mean() -> None:
    torch.manual_seed(0)
    observed = torch.randn(9, 5, dtype=torch.float64)
    first = cumulative_average(torch.full((5,), 99.0, dtype=torch.float64), observed[:4], torch.tensor(0))
    both = cumulative_average(first, observed[4:], torch.tensor(4))
    torch.testing.assert_close(both, observed.mean(0))
