"""Convolutions with their own second derivative: values, first and second derivatives are those of torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from rueda.examine.curvature.second_derivatives import FastSecondDerivatives

CASES = {
    "plain": ((2, 3, 6, 6), (4, 3, 3, 3), {}),
    "padded": ((2, 3, 6, 6), (4, 3, 3, 3), {"padding": 1}),
    "strided": ((2, 3, 7, 7), (4, 3, 3, 3), {"stride": 2, "padding": (1, 0)}),
    "dilated": ((2, 2, 8, 8), (2, 2, 3, 3), {"dilation": 2}),
    "grouped": ((2, 4, 5, 5), (4, 2, 3, 3), {"groups": 2}),
    "same": ((2, 2, 5, 5), (3, 2, 3, 3), {"padding": "same"}),  # left to torch
    "one dimension": ((2, 3, 9), (4, 3, 3), {"padding": 1}),
    "one image": ((3, 6, 6), (4, 3, 3, 3), {}),  # left to torch
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_all_derivatives_are_torchs(case: str, bias: bool) -> None:
    shape, kernel, settings = CASES[case]
    draws = torch.Generator().manual_seed(0)
    call = F.conv1d if len(kernel) == 3 else F.conv2d
    given = [torch.randn(*size, generator=draws, dtype=torch.float64, requires_grad=True) for size in (shape, kernel)]
    given += [torch.randn(kernel[0], generator=draws, dtype=torch.float64, requires_grad=True)] * bias

    def derivatives() -> list[torch.Tensor]:
        outputs = call(*given, **settings)  # type: ignore[operator]
        first = torch.autograd.grad(outputs.tanh().sum(), given, create_graph=True)
        mixed = torch.stack([(one * torch.cos(one.detach())).sum() for one in first]).sum()
        return [outputs, *first, *torch.autograd.grad(mixed, given)]

    exact = derivatives()
    with FastSecondDerivatives():
        found = derivatives()
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
