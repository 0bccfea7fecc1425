"""A loop without a framework: five lines for many workers, and an optimizer, a schedule and the noise scale."""

from contextlib import nullcontext

from torch import nn

import rueda
from rueda.integrations import NoiseMeter
from rueda.nn import apply_ghost_batch_norm
from rueda.optim import LAMB, parameter_groups
from rueda.optim.adapters import torch_scheduler
from rueda.optim.scaling import rate_factor
from rueda.optim.schedules import assemble
from rueda.tasks.datasets import glyphs

num_epochs, num_parts = 2, 2  # micro-batches of an update
world = rueda.init(seed=0)
loader = rueda.Loader(glyphs("train", num_examples=1024), batch=32)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
model = world.wrap(apply_ghost_batch_norm(model, ghost_batch=16))

steps_per_epoch = len(loader) // num_parts
rates = assemble(
    base_rate=0.005, peak_rate=0.005 * rate_factor("sqrt", num_parts * world.size),
    num_steps=num_epochs * steps_per_epoch, warmup_steps=steps_per_epoch, schedule="cosine",
)  # fmt: skip
optimizer = LAMB(parameter_groups(model, weight_decay=0.01), lr=rates(0))
scheduler = torch_scheduler(optimizer, rates)
meter = NoiseMeter(model, every=2)

step = 0
for epoch in range(num_epochs):
    for number, (inputs, targets) in enumerate(loader):
        if number % num_parts == 0:
            meter.begin(step)
        is_last = (number + 1) % num_parts == 0
        with nullcontext() if is_last or world.size == 1 else model.no_sync():  # one all-reduce an update
            loss = nn.functional.cross_entropy(model(inputs.float() / 255), targets)
            (loss / num_parts).backward()
        meter.part(len(targets))
        if is_last:
            meter.end(step)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
if world.is_main:
    print(f"{step} updates, loss {loss.item():.3f}, noise scale {meter.current}")
rueda.finish()
