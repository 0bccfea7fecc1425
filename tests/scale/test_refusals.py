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
    "a buffer that is computed from the batch": (
        """
class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("centre", torch.zeros(4))
    def forward(self, inputs):
        self.centre = 0.9 * self.centre + 0.1 * inputs.mean(0)
        return self.linear(inputs - self.centre)
model = Centred()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for a, b in DataLoader(data, 6):
    step(a, b)
""",
        "a buffer of the model, Centred.centre, differs",
    ),
    "batches that are kept": (
        """
import itertools
for a, b in DataLoader(data, 5):
    step(a, b)
for (a, b), _ in zip(itertools.cycle(DataLoader(data, 5)), range(8)):
    step(a, b)
""",
        "batches that are kept (itertools.cycle, a list) cannot be weighed",
    ),
    "an end of its own on each worker": (
        """
import os
for epoch in range(3):
    for a, b in DataLoader(data, 8):
        step(a, b)
    if epoch == int(os.environ["RANK"]):
        break
""",
        "different numbers of backward passes",
    ),
    "means over different numbers": (
        """
for a, b in DataLoader(data, 8):
    errors = (model(a) - b).square().reshape(-1)
    (errors[a[:, 0] > 0].mean() + errors[a[:, 1] > 0].mean()).backward()
    optimizer.step()
""",
        "parts of the loss are means over different numbers",
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


COMPARED = {
    "the second loss of two": (
        """
other = nn.Linear(4, 1)
second = torch.optim.SGD(other.parameters(), lr=0.1)
for a, b in DataLoader(data, 8):
    step(a, b)
    second.zero_grad()
    other(torch.randn(8, 4)).square().mean().backward()  # 8 on each worker
    second.step()
""",
        "noise is drawn for a fixed number of examples",
    ),
    "a rate that is computed from the share": (
        """
seen = 0
for a, b in DataLoader(data, 8):
    seen += len(a)
    optimizer.param_groups[0]["lr"] = 1 / seen
    step(a, b)
""",
        "the optimizer's lr is 0.0833333, and 0.0625 in the script on one worker",
    ),
    "something kept from an earlier share": (
        """
centre = torch.zeros(1)
for a, b in DataLoader(data, 8):
    step(a, b - centre)
    centre = b.mean(0)
""",
        "keeps something that it computed from an earlier share",
    ),
}


def refused(script: str, verify: int = 0) -> str:
    """Run a script on the workers and return the refusal."""
    from rueda.check.scale import seeds
    from rueda.check.scale.options import ScaleOptions
    from rueda.check.scale.scaling import Scaling
    from rueda.check.scale.verification import ComparedWithReference, Verification
    from rueda.errors import ScaleError
    from rueda.world import current

    world, options = current(), ScaleOptions(verify=verify)

    def compare(notes: Any) -> Verification:
        if world.is_main and verify:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(seeds.VARIABLE, "1")
                return ComparedWithReference([script], options, world, notes)
        return Verification()

    with within(Path(script).parent):
        scaling = Scaling(world, options, verify=compare)
        try:
            scaling.run([script])
        except ScaleError as error:
            return str(error)
    return ""


@workers(2)
def run_on_2(script: str, words: str, verify: int = 0) -> None:
    found = refused(script, verify)
    assert words in found, f"expected {words!r}, got {found!r}"
    assert "\n" not in found


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_scaled_is_refused(what: str, tmp_path: Path) -> None:
    code, words = REFUSED[what]
    script = tmp_path / "train.py"
    script.write_text(BEGINNING + code)
    run_on_2(script=str(script), words=words)


@pytest.mark.parametrize("what", COMPARED)
def test_what_the_comparison_refuses(what: str, tmp_path: Path) -> None:
    code, words = COMPARED[what]
    script = tmp_path / "train.py"
    script.write_text(BEGINNING + code)
    run_on_2(script=str(script), words=words, verify=2)


LATE = """
import numpy
for epoch in range(6):
    for a, b in DataLoader(data, 8):
        if epoch < 5:
            step(a, b)
            continue
        LATER
        step(a, b)
"""
LATER = {
    "another loss": "F = type('', (), {'mse_loss': lambda p, y: (p - y).square().reshape(-1).topk(3).values.mean()})",
    "a permutation": "a = (a + a[torch.randperm(len(a))]) / 2",
    "noise of NumPy": "a = a + torch.from_numpy(numpy.random.randn(*a.shape)).float()",
}


@workers(2)
def with_a_late_loss(script: str) -> None:
    from rueda.check.scale.options import ScaleOptions
    from rueda.check.scale.scaling import Scaling
    from rueda.world import current

    with within(Path(script).parent):
        scaling = Scaling(current(), ScaleOptions(verify=1))
        scaling.run([script])
    assert any("not shared out" in note and "--verify 15" in note for note in scaling.notes.said), scaling.notes.said
    assert scaling.tracker.num_backward == 18
    assert scaling.tracker.num_shared_backward == 15, "the first is entire, and the last two are again"


@pytest.mark.parametrize("later", LATER)
def test_a_loss_that_appears_after_the_comparison_is_computed_on_entire_batches(later: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGINNING + LATE.replace("LATER", LATER[later]))
    with_a_late_loss(script=str(script))


def options_of(**given: Any) -> Any:
    from rueda.check.scale.options import ScaleOptions

    return ScaleOptions(**given)


@pytest.mark.parametrize("given", [{"loss": "median"}, {"load": "all"}, {"batch_norm": "none"}, {"verify": -1}])
def test_options_are_checked(given: dict[str, Any]) -> None:
    from rueda.errors import ScaleError

    with pytest.raises(ScaleError, match=re.escape("--" + next(iter(given)).replace("_", "-"))):
        options_of(**given)
