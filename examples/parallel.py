import torch
from torch import nn

import rueda
from rueda.tasks.datasets import glyphs

world = rueda.init(seed=0)  # 1. who am I, and who are the others?
data = glyphs("train", num_examples=2048)
loader = rueda.Loader(data, batch=64)  # 2. this worker's share, reshuffled each epoch
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
model = world.wrap(model)  # 3. the same start everywhere, gradients averaged
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in rueda.Checkpoint("saved", model=model, optimizer=optimizer, loader=loader).epochs(3):  # 4. one writer
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

rueda.finish()  # 5. leave together
