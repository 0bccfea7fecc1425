"""LAMB, LARS and NovoGrad against timm, pytorch-optimizer and torch_optimizer, and torch's own fused SGD and AdamW.

    python benchmarks/optimizers.py [--repeats 15] [--wall]

Two sets of parameters: ResNet-18's (62 tensors, 11.7 million elements) and 400 tensors of 2,000 to 50,000 elements.
One thread, nothing compiled, weight decay on, milliseconds of processor time a step; the candidates take turns, so
that each finds its memory cold and a noisy machine disturbs all alike. A peer that is not installed is named and left
out. The bars, against the fastest peer: LAMB 1.7, LARS 1.8 and NovoGrad 2.2 times as fast on both sets.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from _common import save
from rueda.optim import LAMB, LARS, NovoGrad

Maker = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
BARS = {"LAMB": 1.7, "LARS": 1.8, "NovoGrad": 2.2}
PEERS = {"timm": "timm", "pytorch-optimizer": "pytorch_optimizer", "torch-optimizer": "torch_optimizer"}


def resnet18() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if block == 0 and before != width:
                shapes += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return [*shapes, (1000, 512), (1000,)]


def many_small() -> list[tuple[int, ...]]:
    sizes = torch.randint(2_000, 50_000, (400,), generator=torch.Generator().manual_seed(0))
    return [(size // 64, 64) for size in sizes.tolist()]


def parameters(shapes: list[tuple[int, ...]]) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(0.05 * torch.randn(shape, generator=generator)) for shape in shapes]
    for p in params:
        p.grad = 0.01 * torch.randn(p.shape, generator=generator)
    return params


def load_peers(console: Console) -> dict[str, Any]:
    """Import what is installed. timm's package wants torchvision; its optimizers do not, so they are loaded alone."""
    peers: dict[str, Any] = {}
    for name, module in PEERS.items():
        spec = importlib.util.find_spec(module)
        if spec is None:
            console.print(f"skipped: {name} is not installed (pip install --no-deps {name})")
        elif name == "timm":
            folder = (spec.submodule_search_locations or [""])[0]
            for package, path in (("timm", folder), ("timm.optim", f"{folder}/optim")):
                sys.modules[package] = types.ModuleType(package)
                sys.modules[package].__path__ = [path]
            parts = ("lamb", "lars", "nvnovograd")
            peers[name] = {part: importlib.import_module(f"timm.optim.{part}") for part in parts}
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                peers[name] = importlib.import_module(module)
    return peers


def candidates(peers: dict[str, Any]) -> dict[str, dict[str, Maker]]:
    """Return the makers by family, the same decay for all; Rueda's first."""
    lamb: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01}
    momentum: dict[str, Any] = {"lr": 0.1, "weight_decay": 1e-4, "momentum": 0.9}
    novo: dict[str, Any] = {"lr": 0.01, "weight_decay": 1e-4}
    families: dict[str, dict[str, Maker]] = {
        "torch": {
            "SGD(fused)": lambda p: torch.optim.SGD(p, fused=True, **momentum),
            "AdamW(fused)": lambda p: torch.optim.AdamW(p, fused=True, **lamb),
        },
        "LAMB": {"rueda": lambda p: LAMB(p, **lamb)},
        "LARS": {"rueda": lambda p: LARS(p, **momentum)},
        "NovoGrad": {"rueda": lambda p: NovoGrad(p, **novo)},
    }
    if timm := peers.get("timm"):
        families["LAMB"]["timm"] = lambda p: timm["lamb"].Lamb(p, max_grad_norm=None, **lamb)  # clips by default
        families["LARS"]["timm"] = lambda p: timm["lars"].Lars(p, **momentum)
        families["NovoGrad"]["timm"] = lambda p: timm["nvnovograd"].NvNovoGrad(p, **novo)
    if other := peers.get("pytorch-optimizer"):
        families["LAMB"]["pytorch-optimizer"] = lambda p: other.Lamb(p, **lamb)
        families["LARS"]["pytorch-optimizer"] = lambda p: other.LARS(p, **momentum)
        families["NovoGrad"]["pytorch-optimizer"] = lambda p: other.NovoGrad(p, **novo)
    if third := peers.get("torch-optimizer"):  # it has no LARS
        families["LAMB"]["torch-optimizer"] = lambda p: third.Lamb(p, **lamb)
        families["NovoGrad"]["torch-optimizer"] = lambda p: third.NovoGrad(p, **novo)
    return families


def measure(
    families: dict[str, dict[str, Maker]], shapes: list[tuple[int, ...]], repeats: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Return milliseconds a step of every candidate, one number a round: 2 steps, after one that is not counted."""
    makers = {f"{family} {name}": make for family, members in families.items() for name, make in members.items()}
    optimizers = {name: make(parameters(shapes)) for name, make in makers.items()}
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    for number in range(1 + repeats):
        for name, optimizer in optimizers.items():
            optimizer.step()  # writes back what the one before left in the cache
            start = clock()
            optimizer.step()
            optimizer.step()
            if number:
                times[name].append(1e3 * (clock() - start) / 2)
    return times


def speedups(times: dict[str, list[float]]) -> dict[str, Any]:
    """Return, for each family, the fastest peer's time over Rueda's, by medians and by minima."""
    result: dict[str, Any] = {}
    for family in BARS:
        mine = times[f"{family} rueda"]
        others = {name: values for name, values in times.items() if name.startswith(family) and values is not mine}
        if others:
            fastest = min(others, key=lambda name: statistics.median(others[name]))
            result[family] = {
                "fastest_peer": fastest.partition(" ")[2],
                "speedup": statistics.median(others[fastest]) / statistics.median(mine),
                "speedup_of_minima": min(map(min, others.values())) / min(mine),
                "bar": BARS[family],
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--wall", action="store_true", help="wall-clock time instead of processor time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the peers'
    console = Console()
    peers = load_peers(console)
    families = candidates(peers)
    sets = {"ResNet-18": resnet18(), "400 small tensors": many_small()}
    clock = time.perf_counter if options.wall else time.process_time
    times = {name: measure(families, shapes, options.repeats, clock) for name, shapes in sets.items()}

    table = Table("optimizer", *(f"{name}, ms (min)" for name in sets))
    for row in next(iter(times.values())):
        cells = (f"{statistics.median(times[name][row]):.1f} ({min(times[name][row]):.1f})" for name in sets)
        table.add_row(row, *cells)
    console.print(table)
    results: dict[str, dict[str, Any]] = {}
    for name, shapes in sets.items():
        results[name] = {
            "elements": sum(map(math.prod, shapes)),
            "tensors": len(shapes),
            "milliseconds": {row: statistics.median(values) for row, values in times[name].items()},
            "milliseconds_min": {row: min(values) for row, values in times[name].items()},
            "speedups": speedups(times[name]),
            "lamb_over_adamw_fused": statistics.median(times[name]["LAMB rueda"])
            / statistics.median(times[name]["torch AdamW(fused)"]),
        }
        for family, entry in results[name]["speedups"].items():
            verdict = "ok" if entry["speedup"] >= entry["bar"] else "BELOW"
            print(
                f"{name}: {family} {entry['speedup']:.2f}x as fast as {entry['fastest_peer']}"
                f" (minima {entry['speedup_of_minima']:.2f}x; bar {entry['bar']}x) {verdict}"
            )
        print(f"{name}: LAMB takes {results[name]['lamb_over_adamw_fused']:.2f}x the time of AdamW(fused)")
    versions = {name: metadata.version(name) for name in peers}
    settings = {"threads": 1, "repeats": options.repeats, "clock": "wall" if options.wall else "processor"}
    save("optimizers", {**settings, "peers": versions, "sets": results}, seeds=(0,))


if __name__ == "__main__":
    main()
