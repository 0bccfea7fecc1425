"""Accelerate: an optimizer, a schedule, ghost batch norm and the noise scale of Rueda, in a loop of your own."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rueda.integrations import NoiseMeter
from rueda.nn import apply_ghost_batch_norm
from rueda.optim import LAMB, parameter_groups
from rueda.optim.scaling import rate_factor
from rueda.optim.schedules import assemble
from rueda.tasks.datasets import glyphs

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
torch.manual_seed(0)
data = glyphs("train", num_examples=1024)
loader = DataLoader(TensorDataset(data.inputs / 255, data.targets), batch_size=32, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
model = apply_ghost_batch_norm(model, ghost_batch=16)
optimizer = LAMB(parameter_groups(model, weight_decay=0.01), lr=0.005)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

num_epochs, steps_per_epoch = 2, len(loader) // accelerator.gradient_accumulation_steps
scale = accelerator.gradient_accumulation_steps * accelerator.num_processes
rates = assemble(
    base_rate=0.005, peak_rate=0.005 * rate_factor("sqrt", scale),
    num_steps=num_epochs * steps_per_epoch, warmup_steps=steps_per_epoch, schedule="cosine",
)  # fmt: skip
meter = NoiseMeter(model, every=2)

step = 0
for epoch in range(num_epochs):
    for number, (inputs, targets) in enumerate(loader):
        if number % accelerator.gradient_accumulation_steps == 0:
            meter.begin(step)
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            meter.part(len(targets))
            if accelerator.sync_gradients:
                meter.end(step)
                for group in optimizer.param_groups:
                    group["lr"] = rates(step)
                step += 1
            optimizer.step()
            optimizer.zero_grad()
accelerator.print(f"{step} updates, loss {loss.item():.3f}, noise scale {meter.current}")
accelerator.end_training()
