"""Evaluations of many kinds after each epoch: sums, a tuple of outputs, rows that depend on each other."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
x = torch.randn(90, 6)
y = (x[:, 0] > 0).long()
train_loader = DataLoader(TensorDataset(x, y), batch_size=18, shuffle=True)
test_loader = DataLoader(TensorDataset(x, y), batch_size=8)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 2)

    def forward(self, inputs):
        features = self.body(inputs)
        return {"logits": self.head(features), "extra": (features, None)}


class Ranked(nn.Module):
    """Each row is compared with the others of its batch."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, inputs):
        scores = self.network(inputs)["logits"]
        return scores - scores.mean(0)


class Keeping(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network, self.kept = network, []

    def forward(self, inputs):
        self.kept.append(self.network(inputs)["logits"])
        return self.kept[-1]


class Sampled(Ranked):
    def forward(self, inputs):
        scores = self.network(inputs)["logits"]
        return scores + 0.1 * torch.randn_like(scores)


class Total(Ranked):
    def forward(self, inputs):
        scores = self.network(inputs)["logits"]
        return scores, scores.square().mean()


def evaluate(model, number_of):
    model.eval()
    total = seen = 0.0
    with torch.no_grad():
        for inputs, targets in test_loader:
            total += number_of(model(inputs), targets).item()
            seen += len(targets)
    model.train()
    return total / seen


model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kinds = {
    "accuracy": (model, lambda out, targets: (out["logits"].argmax(1) == targets).sum()),
    "features": (model, lambda out, targets: out["extra"][0].square().sum()),
    "ranked": (Ranked(model), lambda out, targets: (out[:, 1] * targets).sum()),
    "kept": (Keeping(model), lambda out, targets: out.sum()),
    "sampled": (Sampled(model), lambda out, targets: out.sum()),
    "total": (Total(model), lambda out, targets: out[1]),
}
results = {name: [] for name in kinds}
for epoch in range(2):
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs)["logits"], targets).backward()
        optimizer.step()
    for name, (evaluated, number_of) in kinds.items():
        results[name].append(evaluate(evaluated, number_of))
        print(f"epoch {epoch}: {name} {results[name][-1]:.4f}")
kept = torch.cat(kinds["kept"][0].kept)
assert len(kept) == 2 * 90, len(kept)
torch.save({"results": {name: torch.tensor(values) for name, values in results.items()}}, "model.pt")
