"""A training does not load torch's compiler; a script that compiles finds torch as it is."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

own = {kind: kind.step.__code__ for kind in (torch.optim.SGD, torch.optim.AdamW)}
names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
methods = {name: getattr(torch.optim.Optimizer, name).__code__ for name in names}

from rueda.world.compiler_import import default_compiler_options, spare_compiler

def parameters(spared):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    with default_compiler_options():
        parallel = DistributedDataParallel(model)
    for kind, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {}), (torch.optim.Adam, {})):
        optimizer = kind(model.parameters(), lr=0.01, **options)
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        for _ in range(2):
            optimizer.zero_grad()
            parallel(torch.ones(2, 4, dtype=torch.double)).square().sum().backward()
            optimizer.step()
            assert torch.is_grad_enabled()
            optimizer.load_state_dict(optimizer.state_dict())
        assert calls == 2 * ["before", "after"]
    if spared:
        assert not {"torch._dynamo", "sympy"} & sys.modules.keys()
    return torch.cat([one.detach().flatten() for one in model.parameters()]), model, optimizer

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
spare_compiler()
spare_compiler()
assert torch.optim.SGD.step.__code__ is not own[torch.optim.SGD]
spared, model, optimizer = parameters(spared=True)

compiled = torch.compile(model, backend="eager", fullgraph=True)
assert torch.equal(compiled(torch.ones(1, 4).double()), model(torch.ones(1, 4).double()))
assert "torch._dynamo" in sys.modules and torch._dynamo.utils is sys.modules["torch._dynamo.utils"]
for kind, code in own.items():
    assert kind.step.__wrapped__.__code__ is code  # inside of what calls the hooks
assert methods == {name: getattr(torch.optim.Optimizer, name).__code__ for name in names}
assert torch.equal(parameters(spared=False)[0], spared)
compiled(torch.ones(1, 4).double()).sum().backward()
torch.compile(optimizer.step, backend="eager")()
spare_compiler()
assert methods["zero_grad"] is torch.optim.Optimizer.zero_grad.__code__
dist.destroy_process_group()
"""


def test_a_training_spares_the_compiler_and_compiling_restores_it() -> None:
    """The same numbers without it, hooks and gradient mode included; torch's own functions as soon as it is loaded."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_trains_is_imported_without_the_compiler() -> None:
    """And without DTensor, which brings it: parallel forms import them when they are built."""
    code = "import sys, rueda.cli.train, rueda.train.loop, rueda.study, rueda.examine, rueda.measure, rueda.hvd.torch; "
    code += "print(sorted({'torch._dynamo', 'torch.distributed.tensor', 'sympy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
