"""What a conversion does with the parts of a script, piece by piece: the line before, and the line that it becomes."""

from __future__ import annotations

import pytest

from rueda.check.convert import convert
from rueda.errors import ScaleError

SCRIPT = """import copy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
{imports}
torch.manual_seed(0)
data = TensorDataset(torch.randn(20, 3), torch.randn(20, 1))
loader = DataLoader(data, batch_size=4, shuffle=True)
test_loader = DataLoader(data, batch_size=4)
model = nn.Linear(3, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
for epoch in range(2):
    total = correct = seen = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        {inside}
        loss.backward()
        optimizer.step()
        {after}
    {epoch}
{end}
"""
MEAN, SUM = (
    "(loss * SharedLoader.weight).backward()",
    "(loss * dist.get_world_size() * (SharedLoader.weight > 0)).backward()",
)
CASES = {  # part of the script, its code, and what must stand in the result
    "a sum": ("inside", "loss = F.mse_loss(model(x), y, reduction='sum')", SUM),
    "a sum divided": ("inside", "loss = F.mse_loss(model(x), y, reduction='sum') / len(x)", MEAN),
    "a mean times a number": ("inside", "loss = 0.5 * (model(x) - y).square().mean() + 1e-3", MEAN),
    "a sum of tensors": ("inside", "loss = (model(x) - y).square().sum()", SUM),
    "a total": ("after", "total += loss.item()", "loss = SharedLoader.mean(loss)"),
    "a total before the backward pass": ("inside", "total += loss.item()", "total += SharedLoader.mean(loss).item()"),
    "a weighted total": ("after", "total += loss.item() * len(x)", "total += SharedLoader.sum(loss.item() * len(x))"),
    "a total of a fixed size": ("after", "total += loss.item() * batch_size", "SharedLoader.mean(loss)"),
    "a total of parts": ("after", "total += loss.item() / len(loader)", "SharedLoader.mean(loss)"),
    "a total of a loss with sizes": ("after", "loss = criterion(x.view(-1, x.size(-1)), x); total += loss.item()",
                                     "loss = SharedLoader.mean(loss)"),
    "a size with a name": ("after", "n = len(x); total += n * loss.item()", "SharedLoader.sum(n * loss.item())"),
    "a count": ("after", "seen += x.size(0)", "seen += SharedLoader.sum(x.size(0))"),
    "hits": ("after", "correct += (x > 0).sum().item()", "correct += SharedLoader.sum((x > 0).sum().item())"),
    "a part of hits": ("after", "correct += (x > 0).sum().item() / len(x)", "correct += SharedLoader.mean((x > 0)"),
    "a part with a name": ("after", "hits = (x > 0).sum().item(); part = hits / x.shape[0]; correct += part",
                           "correct += SharedLoader.mean(part)"),
    "a mean of sums": ("after", "correct += x.sum(1).mean().item()", "correct += SharedLoader.mean(x.sum(1)"),
    "a part of all": ("after", "correct += (x > 0).sum().item() / len(loader.dataset)", "SharedLoader.sum((x > 0)"),
    "a meter": ("after", "meter.update(loss.item(), x.size(0))", "(loss.item(), SharedLoader.sum(x.size(0)))"),
    "a meter of an accuracy": ("after", "acc, = accuracy(model(x), y)\n        meter.update(acc[0], x.size(0))",
                               "meter.update(SharedLoader.mean(acc[0]), SharedLoader.sum(x.size(0)))"),
    "a term of the loss": ("inside", "a = x.mean()\n        loss = loss + 0.1 * a\n        total += a.item()",
                           "total += SharedLoader.mean(a).item()"),
    "a term that is a sum": ("inside", "a = x.sum(); loss = a + y.sum(); total += a.item()",
                             "total += SharedLoader.sum(a).item()"),
    "a batch that is not full": ("inside", "if x.size(0) != 4: continue", "if SharedLoader.sum(x.size(0)) != 4:"),
    "a batch of some kind": ("inside", "if x is not None and x.dim() == 2: x = x.float()", "x.dim() == 2:"),
    "a list in the loop": ("inside", "rows = []\n        rows.append(x)", "        rows.append(x)"),
    "steps": ("after", "seen += 1", "        seen += 1"),
    "another mean": ("after", "m = x.mean().item(); print(m)", "m = SharedLoader.mean(x.mean().item())"),
    "progress": ("after", "print(seen, len(x))", "num_examples = SharedLoader.sum(len(x))"),
    "a saved state": ("end", "torch.save(model.state_dict(), 'm.pt')", "torch.save(model.module.state_dict(), 'm.pt')"),
    "a saved model": ("end", "torch.save(model, 'm.pt')", "torch.save(model.module, 'm.pt')"),
    "a copy": ("epoch", "best = copy.deepcopy(model)", "best = copy.deepcopy(model.module)"),
    "a state before the wrapper": ("before", "model.load_state_dict({})", "\nmodel.load_state_dict({})"),
    "a state after it": ("end", "model.load_state_dict({})", "model.module.load_state_dict({})"),
    "an attribute": ("end", "n = model.in_features", "n = model.module.in_features"),
    "what every module has": ("end", "model.train()", "\nmodel.train()"),
    "a function that saves": ("before", "def save(model): torch.save(model.state_dict(), 'm.pt')",
                              'torch.save(getattr(model, "module", model).state_dict(), '),
    "the data as a whole": ("epoch", "n = sum(len(x) for x, y in loader)", "for x, y in loader.whole)"),
    "its batch size": ("epoch", "n = loader.batch_size", "n = loader.whole.batch_size"),
    "its length": ("epoch", "n = len(loader)", "    n = len(loader)\n"),
    "a test": ("epoch", "for x, y in test_loader: model(x)", "    for x, y in test_loader: model(x)\n"),
    "a compiled model": ("before", "fast = torch.compile(model)", "Parallel(model)\nfast = torch.compile"),
    "tqdm": ("imports", "from tqdm import tqdm\nfor i in tqdm(range(3)): pass",
             "tqdm(range(3), disable=dist.get_rank() != 0)"),
    "a TensorBoard writer": ("before", "writer = SummaryWriter('runs')",
                             "writer = SummaryWriter('runs') if dist.get_rank() == 0 else None"),
    "wandb": ("imports", "import wandb\nwandb.init(project='a')",
              """wandb.init(project='a', mode=None if dist.get_rank() == 0 else "disabled")"""),
    "a download": ("before", "d = CIFAR10('data', download=True)", "if dist.get_rank() > 0:\n    dist.barrier()\nd = "),
    "a file read again": ("end", "torch.save(1, 'm.pt')\na = torch.load('m.pt')", "dist.barrier()  # Rank 0 may still"),
    "a file that may be there": ("end", "torch.save(1, 'm')\nif os.path.exists('m'):\n    a = torch.load('m')",
                                 "dist.barrier()  # Rank 0 may still be writing the file.\nif os.path"),
    "a folder, and a file of an earlier run": ("before", "os.makedirs('a')\na = torch.load('m')", ")\na = torch.load"),
    "a printed call of the model": ("epoch", "print(1, model(data[:][0]))", "    model_result = model(data[:][0])\n"),
    "a printed evaluation": ("epoch", "def check(m): return m(data[:][0])\n    print(f'{check(model).mean():.2f}')",
                             "    check_result = check(model)\n    if dist"),
    "a printed function of the model": ("epoch", "def size(m): return m.training\n    print(size(model))",
                                        "        print(size(model))"),
    "a log file": ("before", "log = open('log', 'w')", "open('log' if dist.get_rank() == 0 else os.devnull, 'w')"),
    "a numbered device": ("before", "device = 'cuda:0'", "device = 'cuda'"),
    "numpy": ("imports", "import numpy as np\nn = np.random.rand()", "np.random.seed(0)"),
    "accumulation": ("after", "if (epoch + 1) % 2 == 0: optimizer.step()",
                     "model.require_backward_grad_sync = (epoch + 1) % 2 == 0"),
}  # fmt: skip
UNSURE = {
    "class weights": (
        "before",
        "criterion = nn.CrossEntropyLoss(weight=torch.ones(3))",
        "weighted by classes or tokens",
    ),
    "a sum divided by something": (
        "inside",
        "loss = F.mse_loss(model(x), y, reduction='sum') / total",
        "a mean or a sum",
    ),
    "an accuracy": ("after", "acc = accuracy(model(x), y)\n        print(acc)", "acc is of this worker's share"),
    "a meter of accuracies": ("after", "meter.update(acc.item(), 1)", "acc.item() is of this worker's share"),
    "a number of a share": ("after", "m = x.max().item()\n        print(m)", "m is of this worker's share"),
    "a score that is recorded": ("after", "writer.add_scalar('dice', dice(x, y), 1)", "dice(x, y) is of"),
    "a score on a bar": ("after", "s = score(x)\n        bar.set_postfix(score=s)", "s is of this worker's share"),
    "a score that is tracked": ("after", "wandb.log({'score': score(x)})", "score(x) is of this worker's share"),
    "a total of scores": ("after", "total += score(model(x), y)", "total gets values of this worker's share alone"),
    "predictions": ("after", "out = model(x)\n        hits.extend(out.tolist())", "hits gets values of this worker's"),
    "a decision": ("inside", "if torch.isnan(x).any(): continue", "torch.isnan(x).any() is of this worker's share"),
    "a method that computes": ("inside", "loss = model.loss(x, y)", "loss does not pass the wrapper"),
    "printed before": ("inside", "print(loss.item())", "move this after backward()"),
    "a numbered GPU": ("before", "model.cuda(1)", "let every worker use its own GPU"),
    "DataParallel": ("before", "model = nn.DataParallel(model)", "leave out DataParallel"),
}
PARTS = ("imports", "before", "inside", "after", "epoch", "end")


def script(part: str, code: str) -> bytes:
    return SCRIPT.format(**{**dict.fromkeys(PARTS, "pass"), part: code}).encode()


@pytest.mark.parametrize(("part", "code", "expected"), CASES.values(), ids=CASES)
def test_each_part_is_converted(part: str, code: str, expected: str) -> None:
    conversion = convert(script(part, code), to="ddp")
    assert expected in conversion.after.decode()
    assert not conversion.warnings


@pytest.mark.parametrize(("part", "code", "expected"), UNSURE.values(), ids=UNSURE)
def test_what_is_not_sure_is_said(part: str, code: str, expected: str) -> None:
    conversion = convert(script(part, code), to="ddp")
    assert len(conversion.warnings) == 1 and expected in conversion.warnings[0]
    line = int(conversion.warnings[0].split(":")[1])
    said = conversion.after.decode().splitlines()
    assert sum("# TODO(rueda): " in each for each in said) == 1
    assert script(part, code).decode().splitlines()[line - 1].strip()


REFUSED = {
    "no Python": (b"def (", "train.py:1: expected Python, got"),
    "a NUL": (b"a = 1\0", "expected Python, got"),
    "no text": (b"\xff\xfe\x00a", "expected Python, got"),
    "an unknown encoding": (b"# coding: klingon\n", "expected Python, got"),
    "no text of its encoding": (b"a = '\xff'\n", "expected Python, got"),
    "nothing": (b"", "expected a loop that trains, got 'no call of backward()'"),
    "no training": (b"import torch\nprint(1)", "expected a loop that trains"),
    "no model": (b"import torch\nx = torch.ones(1, requires_grad=True)\nx.sum().backward()", "expected a model"),
    "parallel": (b"import torch.distributed as d\nd.init_process_group()", "got 'one that uses torch.distributed'"),
    "Lightning": (b"import lightning", "got 'one that uses Lightning'"),
    "endless brackets": (b"(" * 5000, "expected Python, got"),
}


@pytest.mark.parametrize(("content", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_converted_is_refused_in_one_line(content: bytes, said: str) -> None:
    with pytest.raises(ScaleError) as caught:
        convert(content, to="ddp")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_reasons_are_said_once() -> None:
    counts = convert(script("after", "seen += len(x); correct += (x > 0).sum().item()"), to="rueda").after.decode()
    assert counts.count("# Added up over all workers") == 1
    code = "other = nn.Linear(3, 1); its = torch.optim.SGD(other.parameters(), lr=0.1)"
    models = convert(script("before", code), to="rueda").after.decode()
    assert models.count("# All workers start with") == 1 and models.count("world.wrap(") == 2


def test_a_converted_script_is_not_converted_again() -> None:
    for to in ("ddp", "rueda", "horovod"):
        with pytest.raises(ScaleError, match="expected a serial script"):
            convert(convert(script("end", "pass"), to=to).after, to=to)
