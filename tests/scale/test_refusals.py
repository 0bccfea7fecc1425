"""What cannot be scaled is refused in one line, on every worker; never trained wrongly in silence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness import workers
from scalehere import within

BEGINNING = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, IterableDataset, BatchSampler
import torch.nn.functional as F
torch.manual_seed(0)
x, y = torch.randn(24, 4), torch.randn(24, 1)
data = TensorDataset(x, y)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(inputs, targets):
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
"""
REFUSED = {
    "data drawn outside a DataLoader": (
        """
for i in range(0, 24, 8):
    step(x[i:i+8], y[i:i+8])
""",
        "before a DataLoader gave a batch",
    ),
    "it connects its workers itself": (
        """
import torch.distributed
getattr(torch.distributed, "init_process_" + "group")("gloo")
""",
        "it is not serial",
    ),
    "gradients that are set by hand": (
        """
for a, b in DataLoader(data, 8):
    loss = F.mse_loss(model(a), b)
    for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        p.grad = g
    optimizer.step()
""",
        "do not come from backward",
    ),
    "a graph of the gradient": (
        """
for a, b in DataLoader(data, 8):
    F.mse_loss(model(a), b).backward(create_graph=True)
""",
        "create_graph=True",
    ),
    "a tensor that nobody knows": (
        """
scale = torch.ones(3, requires_grad=True)
for a, b in DataLoader(data, 8):
    (F.mse_loss(model(a), b) * scale.sum()).backward()
    scale.data -= 0.1 * scale.grad
""",
        "belongs to no module and no optimizer",
    ),
    "sparse gradients": (
        """
table = nn.Embedding(5, 1, sparse=True)
for a, b in DataLoader(data, 8):
    (model(a) - table(torch.arange(len(a)) % 5)).square().mean().backward()
""",
        "sparse gradients",
    ),
    "an order of its own on each worker": (
        """
import os
class Sampler:
    def __iter__(self):
        shift = int(os.environ["RANK"])
        return iter([[(i + shift) % 24 for i in range(j, j + 8)] for j in (0, 8, 16)])
for a, b in DataLoader(data, batch_sampler=Sampler()):
    step(a, b)
""",
        "drawn different batches",
    ),
    "a model of its own on each worker": (
        """
import os
with torch.no_grad():
    model.weight += int(os.environ["RANK"])
for a, b in DataLoader(data, 8):
    step(a, b)
""",
        "parameters differ between the workers",
    ),
    "a loop that only looks": (
        """
loader = DataLoader(data, 8)
for a, b in loader:
    step(a, b)
total = 0.0
for a, b in loader:
    total += F.mse_loss(model(a), b).item()
""",
        "put that loop under torch.no_grad()",
    ),
    "a batch drawn ahead, of another size": (
        """
batches = iter(DataLoader(data, 5))
ahead = next(batches)
while ahead is not None:
    now, ahead = ahead, next(batches, None)
    step(*now)
""",
        "do not divide alike",
    ),
    "batches in any order": (
        """
for a, b in DataLoader(data, 8, num_workers=1, in_order=False):
    step(a, b)
""",
        "in_order=False",
    ),
    "random numbers that begin late": (
        """
class Late(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return x[index] + (torch.rand(()) if index > 15 else 0.0), y[index]
for a, b in DataLoader(Late(), 4):
    step(a, b)
""",
        "begun to draw random numbers",
    ),
    "a refusal that the script catches": (
        """
for i in range(2):
    try:
        step(x, y)
    except Exception:
        pass
""",
        "before a DataLoader gave a batch",
    ),
}


def refused(script: str) -> str:
    """Run a script on the workers and return the refusal."""
    from rueda.check.scale.options import ScaleOptions
    from rueda.check.scale.scaling import Scaling
    from rueda.errors import ScaleError
    from rueda.world import current

    with within(Path(script).parent):
        scaling = Scaling(current(), ScaleOptions(verify=0))
        try:
            scaling.run([script])
        except ScaleError as error:
            return str(error)
    return ""


@workers(2)
def run_on_2(script: str, words: str) -> None:
    found = refused(script)
    assert words in found, f"expected {words!r}, got {found!r}"
    assert "\n" not in found


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_scaled_is_refused(what: str, tmp_path: Path) -> None:
    code, words = REFUSED[what]
    script = tmp_path / "train.py"
    script.write_text(BEGINNING + code)
    run_on_2(script=str(script), words=words)


def options_of(**given: Any) -> Any:
    from rueda.check.scale.options import ScaleOptions

    return ScaleOptions(**given)


@pytest.mark.parametrize("given", [{"loss": "median"}, {"load": "all"}, {"batch_norm": "none"}, {"verify": -1}])
def test_options_are_checked(given: dict[str, Any]) -> None:
    from rueda.errors import ScaleError

    with pytest.raises(ScaleError, match=re.escape("--" + next(iter(given)).replace("_", "-"))):
        options_of(**given)
