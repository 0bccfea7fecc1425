"""Tokens/s of the built-in transformer, trained by Rueda, a plain torch loop, Hugging Face's Trainer and Fabric.

All train the network, windows, batch and optimizer of ``rueda train text-transformer`` on a shorter text: AdamW with
clipped gradients, a warm-up and a cosine. Each peer is written and started as its users do it:

- **Rueda**: the task, started by ``rueda run`` on two workers;
- **plain torch**: a loop over a ``DataLoader``; on two workers DistributedDataParallel and a ``DistributedSampler``;
- **Hugging Face Trainer**: the same data as a ``Dataset`` of dicts, the recipe as ``TrainingArguments``;
- **Lightning Fabric**: the plain loop with ``fabric.setup``, ``fabric.setup_dataloaders`` and ``fabric.backward``.

The peers are started by torchrun on two workers. Each measurement is a process of its own (two for two workers) with
one thread, in turns. It trains 6 epochs; what counts is the median of the last 5, without evaluation. A ratio is the
median over rounds, each round being one pair. Beside wall time the processor time of rank 0 is saved: on a machine that
others use it is what the work itself costs.

    python benchmarks/text.py                                what is not installed is left out, with a line
    python benchmarks/text.py --repeats 9 --workers 1
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from _common import save
from rueda.data import Arrays
from rueda.optim.rates import build_schedule
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.tasks.datasets import text
from rueda.tasks.language import CONTEXT, text_transformer

NUM_WINDOWS, NUM_EPOCHS = 1024, 6
NEEDS = {
    "Hugging Face Trainer": (("transformers",), ("accelerate",)),
    "Lightning Fabric": (("lightning_fabric", "lightning"),),
}
"""packages that a loop needs; of several in one place, one is enough"""
WANTED = 1.0


class Clock:
    """Tokens per second of each epoch, by wall time and by this process's processor time."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []
        self.begin()

    def begin(self) -> None:
        """Start an epoch."""
        self._started = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """End an epoch of all windows; on two workers each has half of them."""
        wall, processor = time.perf_counter() - self._started[0], time.process_time() - self._started[1]
        self.wall.append(NUM_WINDOWS * CONTEXT / wall)
        self.processor.append(NUM_WINDOWS * CONTEXT / processor)

    def medians(self) -> dict[str, float]:
        """Return the medians without the first epoch."""
        return {"wall": statistics.median(self.wall[1:]), "processor": statistics.median(self.processor[1:])}


def windows() -> Arrays:
    """The data of all: 1,024 windows of 64 bytes."""
    return text.text_windows(text.generated_text("train", num_bytes=NUM_WINDOWS * CONTEXT + 1), CONTEXT)


def task_and_recipe() -> tuple[Task, Recipe]:
    """The built-in task on the shorter text, and its recipe for this many workers."""
    data = windows()
    task = replace(text_transformer(), train=data, test=data.subset(slice(0, 16)))
    return task, task.recipe.change(workers=num_workers(), epochs=NUM_EPOCHS)


def num_workers() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def optimizer_of(network: nn.Module, recipe: Recipe) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """AdamW and the schedule, as the peers' users write them."""
    beta1, beta2 = recipe.betas
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=recipe.rate, betas=(beta1, beta2), weight_decay=recipe.weight_decay
    )
    rate = build_schedule(recipe, NUM_WINDOWS // recipe.global_batch)
    return optimizer, LambdaLR(optimizer, lambda step: rate(step) / recipe.rate)


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def rueda_loop() -> Clock:
    import rueda
    from rueda.train.interruption import Interruption
    from rueda.train.loop import train_epoch
    from rueda.train.recorder import Recorder
    from rueda.train.training import Training

    world, (task, recipe) = rueda.init(seed=0), task_and_recipe()
    training = Training(task, recipe, world)
    recorder, clock = Recorder(training), Clock()
    with Interruption(world) as interruption:
        for _ in range(NUM_EPOCHS):
            clock.begin()
            train_epoch(training, recorder, interruption)
            clock.end()
    return clock


def plain_loop() -> Clock:
    task, recipe = task_and_recipe()
    data = windows()
    dataset = TensorDataset(data.inputs, data.targets)
    torch.manual_seed(0)
    model: nn.Module = task.build(recipe)
    sampler: DistributedSampler[Any] | None = None
    if num_workers() > 1:
        dist.init_process_group("gloo")
        model, sampler = nn.parallel.DistributedDataParallel(model), DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=recipe.batch, shuffle=sampler is None, sampler=sampler, drop_last=True)
    optimizer, scheduler = optimizer_of(model, recipe)
    clock = Clock()
    for epoch in range(NUM_EPOCHS):
        if sampler is not None:
            sampler.set_epoch(epoch)
        clock.begin()
        total = 0.0
        for tokens, targets in loader:
            optimizer.zero_grad()
            loss = next_token_loss(model(tokens), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip or 1.0)
            optimizer.step()
            scheduler.step()
            total += loss.item()
        clock.end()
    return clock


def fabric_loop() -> Clock:
    try:
        from lightning_fabric import Fabric
    except ModuleNotFoundError:  # the whole of Lightning holds it, too
        from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=num_workers(), strategy="ddp" if num_workers() > 1 else "auto")
    fabric.launch()
    task, recipe = task_and_recipe()
    data = windows()
    fabric.seed_everything(0, verbose=False)
    network = task.build(recipe)
    optimizer, scheduler = optimizer_of(network, recipe)
    model, optimizer = fabric.setup(network, optimizer)
    dataset = TensorDataset(data.inputs, data.targets)
    loader: Iterable[Any] = fabric.setup_dataloaders(
        DataLoader(dataset, batch_size=recipe.batch, shuffle=True, drop_last=True)
    )
    clock = Clock()
    for _ in range(NUM_EPOCHS):
        clock.begin()
        total = 0.0
        for tokens, targets in loader:
            optimizer.zero_grad()
            loss = next_token_loss(model(tokens), targets)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=recipe.clip)
            optimizer.step()
            scheduler.step()
            total += loss.item()
        clock.end()
    return clock


class Windows(Dataset[dict[str, Tensor]]):
    """The windows as dicts, as Hugging Face's collate functions take them."""

    def __init__(self) -> None:
        self._data = windows()

    def __len__(self) -> int:
        return NUM_WINDOWS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"tokens": self._data.inputs[index], "labels": self._data.targets[index]}


class WithLoss(nn.Module):
    """The network with its loss, as the Trainer wants it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the mean loss and the logits, by the names that the Trainer reads."""
        logits = self.network(tokens)
        return {"loss": next_token_loss(logits, labels), "logits": logits}


def trainer_loop() -> Clock:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    task, recipe = task_and_recipe()
    beta1, beta2 = recipe.betas
    clock = Clock()

    class Timed(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_epoch_begin(self, *arguments: Any, **options: Any) -> None:
            clock.begin()

        def on_epoch_end(self, *arguments: Any, **options: Any) -> None:
            clock.end()

    steps_per_epoch = NUM_WINDOWS // recipe.global_batch
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, use_cpu=True, per_device_train_batch_size=recipe.batch, num_train_epochs=NUM_EPOCHS,
            learning_rate=recipe.rate, adam_beta1=beta1, adam_beta2=beta2, weight_decay=recipe.weight_decay,
            max_grad_norm=recipe.clip or 1.0, lr_scheduler_type="cosine_with_min_lr",
            lr_scheduler_kwargs={"min_lr_rate": recipe.final_rate}, warmup_steps=steps_per_epoch // 2,
            dataloader_drop_last=True, save_strategy="no", report_to="none", disable_tqdm=True, seed=0,
        )  # fmt: skip
        torch.manual_seed(0)
        model = WithLoss(task.build(recipe))
        Trainer(model=model, args=arguments, train_dataset=Windows(), callbacks=[Timed()]).train()
    return clock


LOOPS: dict[str, Callable[[], Clock]] = {
    "rueda": rueda_loop,
    "plain torch": plain_loop,
    "Hugging Face Trainer": trainer_loop,
    "Lightning Fabric": fabric_loop,
}


def measure(name: str, workers: int) -> dict[str, float] | None:
    """Run one measurement in processes of its own, started as its users do; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [__file__, "--measure", name, "--answer", str(answer)]
        if workers == 1:
            command = [sys.executable, *command]
        elif name == "rueda":
            command = [sys.executable, "-m", "rueda", "run", "-np", str(workers), sys.executable, *command]
        else:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            command = [*launcher, str(workers), *command]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode or not answer.exists():
            print(done.stderr[-2000:], file=sys.stderr)
            return None
        found: dict[str, float] = json.loads(answer.read_text())
        return found


def installed(name: str) -> bool:
    """Return whether what a loop needs is installed; say so if not."""
    missing = [any_of[0] for any_of in NEEDS.get(name, ()) if not any(map(importlib.util.find_spec, any_of))]
    if missing:
        packages = " ".join(missing).replace("_", "-")
        print(f"{name}: left out, since it is not installed (pip install {packages})", file=sys.stderr)
    return not missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", choices=LOOPS, help="one measurement, for the processes of this benchmark")
    parser.add_argument("--answer", type=Path, help="where --measure writes its figures")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", default="1,2", help="numbers of workers")
    options = parser.parse_args()
    if options.measure:
        torch.set_num_threads(1)
        clock = LOOPS[options.measure]()
        if os.environ.get("RANK", "0") == "0":
            options.answer.write_text(json.dumps(clock.medians()))
        if dist.is_initialized():
            dist.barrier()  # no worker ends before all have written
        os._exit(0)  # a process group of torch that is taken down with the interpreter aborts now and then
    cases = [(name, int(count)) for count in options.workers.split(",") for name in LOOPS if installed(name)]
    speeds: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(options.repeats):
        for name, count in list(speeds):
            speed = measure(name, count)
            if speed is None:
                sys.exit(f"{name} on {count}: the measurement failed; its last words are above")
            speeds[name, count].append(speed)
            print(f"  {name} on {count}: {speed['wall']:,.0f} tokens/s", file=sys.stderr, flush=True)
    report(speeds, options.repeats)


def report(speeds: dict[tuple[str, int], list[dict[str, float]]], repeats: int) -> None:
    """Print a table and save the figures."""
    table = Table(title=f"tokens/s, median of {repeats} processes, and Rueda's in relation")
    for column in ("loop", "workers", "tokens/s", "rueda / it", "by processor time"):
        table.add_column(column, justify="left" if column == "loop" else "right")
    ratios: dict[str, dict[str, float]] = {}
    for (name, count), rounds in speeds.items():
        value = {
            clock: statistics.median(
                ours[clock] / theirs[clock] for ours, theirs in zip(speeds["rueda", count], rounds, strict=True)
            )
            for clock in ("wall", "processor")
        }
        shown = [f"{value[clock]:.2f}" if name != "rueda" else "" for clock in value]
        table.add_row(name, str(count), f"{statistics.median(one['wall'] for one in rounds):,.0f}", *shown)
        if name != "rueda":
            ratios[f"rueda / {name} on {count}"] = {
                "ratio": round(value["wall"], 3), "processor_ratio": round(value["processor"], 3), "wanted": WANTED,
            }  # fmt: skip
    Console().print(table)
    versions = {name: _version(name) for name in ("transformers", "accelerate", "lightning-fabric", "lightning")}
    kept = {f"{name} on {count}": rounds for (name, count), rounds in speeds.items()}
    save("text", {"tokens_per_second": kept, "repeats": repeats, "ratios": ratios, "peers": versions}, seeds=(0,))


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
