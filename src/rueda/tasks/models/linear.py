"""The linear model y = w x + b, which starts at zero so that its path can be drawn on the loss surface."""

from __future__ import annotations

from torch import Tensor, nn


class Line(nn.Module):
    """y = w x + b for one number x; the output has the shape of the input, [B].

    >>> import torch
    >>> Line()(torch.tensor([1.0, 2.0])).tolist()
    [0.0, 0.0]
    """

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)
        nn.init.zeros_(self.line.weight)
        nn.init.zeros_(self.line.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map x [B] to y [B]."""
        outputs: Tensor = self.line(inputs.unsqueeze(-1))
        return outputs.squeeze(-1)
