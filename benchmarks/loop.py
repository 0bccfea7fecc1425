"""The loop of `rueda train` against hand-written loops: plain torch, DDP, Accelerate, Lightning Fabric.

Four questions, each a ratio of images/s within one run:

1. What does the loop cost? Rueda against a hand-written loop of plain torch with Rueda's own loader, on 1 worker, and
   against hand-written DDP over Gloo on 2; malloc tuned for both. Stricter peers have channels-last order, too, and the
   strictest is compiled and has torch's fused optimizer, against Rueda with ``compile``.
2. What does the exchange cost? An MLP of 4.2 million parameters at batch 64: so much to exchange and so little to
   compute that 2 workers over Gloo are slower than 1.
3. What does a user gain who just starts it? A CNN at batch 256, malloc as the system has it for the hand-written loop.
4. And against the same training as its users write it with Accelerate and Lightning Fabric: their loaders, per-image
   transforms (pad, crop, flip, normalise), on a net small enough that data matter.

Each measurement is a process of its own (two for 2 workers), one thread each, in turns; images/s are those of whole
epochs after the first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from _common import answer_of, save
from plan import MLP_BATCH, mlp, points

NUM_TRAIN = 2560
NUM_EPOCHS = 3


def images(num_examples: int, channels: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (num_examples, channels, size, size), dtype=torch.uint8, generator=generator)
    return inputs, torch.randint(0, 10, (num_examples,), generator=generator)


def cnn() -> nn.Module:
    """The CNN of the loop questions: 3x32x32."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 64, 10),
    )  # fmt: skip


def arrays(model: Callable[[], nn.Module]) -> Any:
    """Data for a model: images, or the points of the MLP."""
    import rueda

    return points() if model is mlp else rueda.Arrays(*images(NUM_TRAIN, 3, 32), mean=(0.5,) * 3, std=(0.25,) * 3)


def small_net() -> nn.Module:
    """A net so small that the data matter."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 256, 10))


# Each loop below runs whole epochs and gives the images/s of the last ones.


def timed(epoch: Callable[[], int]) -> float:
    speeds = []
    for number in range(NUM_EPOCHS):
        started = time.perf_counter()
        count = epoch()
        if number > 0:
            speeds.append(count / (time.perf_counter() - started))
    return statistics.median(speeds)


def rueda_loop(batch: int, augment: bool, model: Callable[[], nn.Module], compiled: bool = False) -> float:
    import rueda
    from rueda.data import HorizontalFlip, RandomCrop
    from rueda.records import Row
    from rueda.train.loop import run_epochs
    from rueda.train.recorder import Recorder
    from rueda.train.training import Training

    world = rueda.init(seed=0)
    data = arrays(model)
    task = rueda.Task(
        name="loop", model=model, train=data, test=data.subset(slice(0, 64)),
        augment=(RandomCrop(padding=4), HorizontalFlip()) if augment else (),
    )  # fmt: skip
    recipe = rueda.Recipe(
        workers=world.size, batch=batch, epochs=NUM_EPOCHS, rate=0.01, recalibrate="never", compile=compiled
    )
    training = Training(task, recipe, world)
    recorder, rows = Recorder(training), list[Row]()
    recorder.append = rows.append  # type: ignore[method-assign, assignment]
    run_epochs(training, recorder)
    return statistics.median(row.images_per_second for row in rows[1:])


def hand_written(
    batch: int, model: Callable[[], nn.Module], tuned: bool, channels_last: bool = False, compiled: bool = False
) -> float:
    """Plain torch, as a careful user writes it, with Rueda's loader; DDP where there are several workers."""
    import torch.distributed as dist

    import rueda
    from rueda.world import World, malloc
    from rueda.world.identity import identify

    if tuned:
        malloc.tune()
    identity = identify(os.environ)
    order = torch.channels_last if channels_last else torch.contiguous_format
    network = model().to(memory_format=order)  # type: ignore[call-overload]
    if compiled:
        network = torch.compile(network)
    if identity.size > 1:
        dist.init_process_group("gloo")
        network = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, fused=compiled or None)
    loader = rueda.Loader(arrays(model), batch, world=World(identity=identity))

    def epoch() -> int:
        count = correct = 0
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = network(inputs.contiguous(memory_format=order) if inputs.dim() == 4 else inputs)
            loss = F.cross_entropy(outputs, targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            correct += int((outputs.argmax(1) == targets).sum())
            count += len(targets)
        return count * identity.size

    speed = timed(epoch)
    if identity.size > 1:
        dist.destroy_process_group()
    return speed


class PerImage(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Per-image transforms on tensors, as torchvision's users write them."""

    def __init__(self) -> None:
        self.inputs, self.targets = images(NUM_TRAIN, 3, 32)
        self.mean, self.std = torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.25)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = F.pad(self.inputs[index], (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return (image.float() / 255 - self.mean) / self.std, self.targets[index]


def peer_loop(batch: int, prepare: Callable[..., Any], backward: Callable[[Tensor], None]) -> float:
    network = small_net()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    loader = torch.utils.data.DataLoader(PerImage(), batch_size=batch, shuffle=True, drop_last=True)
    network, optimizer, loader = prepare(network, optimizer, loader)

    def epoch() -> int:
        count = correct = 0
        batches: Iterable[tuple[Tensor, Tensor]] = loader
        for inputs, targets in batches:
            optimizer.zero_grad()
            outputs = network(inputs)
            loss = F.cross_entropy(outputs, targets)
            backward(loss)
            optimizer.step()
            correct += int((outputs.argmax(1) == targets).sum())
            count += len(targets)
        return count

    return timed(epoch)


def accelerate_loop(batch: int) -> float:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    return peer_loop(batch, accelerator.prepare, accelerator.backward)


def fabric_loop(batch: int) -> float:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)

    def prepare(network: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> Any:
        network, optimizer = fabric.setup(network, optimizer)
        return network, optimizer, fabric.setup_dataloaders(loader)

    return peer_loop(batch, prepare, fabric.backward)


MEASUREMENTS: dict[str, Callable[[], float]] = {
    "rueda": lambda: rueda_loop(256, False, cnn),
    "plain torch, malloc tuned": lambda: hand_written(256, cnn, True),
    "plain torch, as started": lambda: hand_written(256, cnn, False),
    "plain torch, malloc tuned, channels last": lambda: hand_written(256, cnn, True, channels_last=True),
    "rueda, compiled": lambda: rueda_loop(256, False, cnn, compiled=True),
    "plain torch, malloc tuned, channels last, compiled, fused": lambda: hand_written(256, cnn, True, True, True),
    "rueda on 2": lambda: rueda_loop(128, False, cnn),
    "DDP by hand on 2, malloc tuned": lambda: hand_written(128, cnn, True),
    "DDP by hand on 2, malloc tuned, channels last": lambda: hand_written(128, cnn, True, channels_last=True),
    "rueda, MLP": lambda: rueda_loop(MLP_BATCH, False, mlp),
    "rueda on 2, MLP": lambda: rueda_loop(MLP_BATCH, False, mlp),
    "DDP by hand on 2, malloc tuned, MLP": lambda: hand_written(MLP_BATCH, mlp, True),
    "rueda, small net, crop + flip": lambda: rueda_loop(128, True, small_net),
    "Accelerate, small net, crop + flip": lambda: accelerate_loop(128),
    "Lightning Fabric, small net, crop + flip": lambda: fabric_loop(128),
}
RATIOS = [
    ("rueda", "plain torch, malloc tuned", 0.97),
    ("rueda", "plain torch, malloc tuned, channels last", 0.97),
    ("rueda, compiled", "plain torch, malloc tuned, channels last, compiled, fused", 1.0),
    ("rueda on 2", "DDP by hand on 2, malloc tuned", 1.15),
    ("rueda on 2", "DDP by hand on 2, malloc tuned, channels last", 1.15),
    ("rueda on 2, MLP", "rueda, MLP", 1.0),
    ("rueda on 2, MLP", "DDP by hand on 2, malloc tuned, MLP", 1.5),
    ("rueda", "plain torch, as started", 1.3),
    ("rueda, small net, crop + flip", "Accelerate, small net, crop + flip", 1.0),
    ("rueda, small net, crop + flip", "Lightning Fabric, small net, crop + flip", 1.0),
]


def measure(name: str) -> float | None:
    """Run one measurement in processes of its own."""
    speed: float | None = answer_of([__file__, "--measure", name], 2 if " on 2" in name else 1)
    return speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", help="one measurement, for the processes of this benchmark")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(MEASUREMENTS[options.measure]()), flush=True)
        os._exit(0)  # a process group of torch that is taken down with the interpreter aborts now and then
    speeds: dict[str, list[float]] = {name: [] for name in MEASUREMENTS}
    missing: set[str] = set()
    for _ in range(options.repeats):
        for name in [name for name in MEASUREMENTS if name not in missing]:
            speed = measure(name)
            if speed is None:
                missing.add(name)
                speeds[name].clear()
                print(f"{name}: could not be measured here; is it installed? (make bench installs it)", file=sys.stderr)
            else:
                speeds[name].append(speed)
                print(f"  {name}: {speed:,.0f} images/s", file=sys.stderr, flush=True)
    table = Table(title="images/s, median over processes")
    table.add_column("loop")
    table.add_column("images/s", justify="right")
    for name, values in speeds.items():
        table.add_row(name, f"{statistics.median(values):,.0f}" if values else "not measured")
    console = Console()
    console.print(table)
    ratios = {}
    for ours, theirs, bar in RATIOS:
        if speeds[ours] and speeds[theirs]:
            # Each round is one pair: the noise of the machine is common to both.
            value = statistics.median(a / b for a, b in zip(speeds[ours], speeds[theirs], strict=True))
            ratios[f"{ours} / {theirs}"] = {"ratio": round(value, 3), "wanted": bar}
            console.print(f"{ours} / {theirs}: {value:.2f} (wanted {bar})")
    save("loop", {"images_per_second": speeds, "repeats": options.repeats, "ratios": ratios}, seeds=(0,))


if __name__ == "__main__":
    main()
