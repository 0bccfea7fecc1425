"""Parallel forms against plain torch doing the same by hand: images/s, the bubble of a pipeline, memory.

A vision transformer trains at one global batch: on 2 workers with data, sharded, pipeline (GPipe and 1F1B) and tensor
parallelism, on 4 workers in combinations. Beside Rueda stands what a careful user writes: DistributedDataParallel,
``fully_shard`` of each block, ``torch.distributed.pipelining`` with the blocks cut in halves, ``parallelize_module`` as
Megatron splits them. Both train in the same processes, blocks of steps in turns: the same model, batch, loader, Gloo,
malloc, one thread and the same fused optimizer. The figure is the median over rounds of Rueda's images/s over the
peer's in the same round; wanted is at least 0.97. The processor's time of all workers is compared as well.

- **Bubble**: the share of a step in which workers of Rueda's pipeline wait, beside that of the schedule executed with
  the measured seconds of each stage's passes; wanted is a difference of at most 15 % of the latter, where each worker
  has a core. Workers that share cores also wait for these, which is not in any schedule: the figures are kept, but they
  are no test of it.
- **Memory**: the bytes of parameters, gradients and optimizer state of a worker, for ``sharded`` at most 0.6 of those
  for ``data``; and how much the highest resident memory of a process rises by the training, which is measured with
  Rueda alone and with the peer alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from _common import answer_of, save
from loop import images
from rueda.world.cores import usable_cores

WIDTH, LAYERS, HEADS, PATCH = 192, 8, 6, 4
BATCH, NUM_TRAIN, MICRO_BATCHES = 32, 512, 8
RATE, DECAY = 1e-4, 0.05
WANTED, WANTED_BUBBLE, WANTED_MEMORY = 0.97, 0.15, 0.6
ROUNDS, BLOCK = 7, 3
CASES: dict[str, tuple[str, str, int]] = {  # form, schedule of a pipeline, workers
    "data": ("data", "1f1b", 2),
    "sharded": ("sharded", "1f1b", 2),
    "pipeline, GPipe": ("pipeline", "gpipe", 2),
    "pipeline, 1F1B": ("pipeline", "1f1b", 2),
    "tensor": ("tensor", "1f1b", 2),
    "data 2 x sharded 2": ("data 2 x sharded 2", "1f1b", 4),
    "data 2 x pipeline 2": ("data 2 x pipeline 2", "1f1b", 4),
    "data 2 x tensor 2": ("data 2 x tensor 2", "1f1b", 4),
    "sharded 2 x tensor 2": ("sharded 2 x tensor 2", "1f1b", 4),
}
OURS, PEER = "rueda", "by hand"
Step = Callable[[], None]


def model() -> nn.Module:
    from rueda.tasks.models import vision_transformer

    torch.manual_seed(0)
    return vision_transformer(
        in_channels=3, image_size=32, patch=PATCH, width=WIDTH, num_layers=LAYERS, heads=HEADS
    )  # fmt: skip


def arrays() -> Any:
    import rueda

    return rueda.Arrays(*images(NUM_TRAIN, 3, 32), mean=(0.5,) * 3, std=(0.25,) * 3)


def rueda_training(case: str) -> Any:
    import rueda
    from rueda.records.recipe.parallel_form import has_pipeline, mesh_of
    from rueda.train.training import Training

    form, schedule, workers = CASES[case]
    data, world = arrays(), rueda.init(seed=0)
    task = rueda.Task(name="parallel", model=model, train=data, test=data.subset(slice(0, 64)))
    recipe = rueda.Recipe(
        workers=world.size, batch=BATCH // mesh_of(form, workers).replicas, parallel=form, pipeline_schedule=schedule,
        micro_batches=MICRO_BATCHES if has_pipeline(form) else None, optimizer="adamw", rate=RATE, weight_decay=DECAY,
        recalibrate="never",
    )  # fmt: skip
    return Training(task, recipe, world)


# What a careful user writes.


class SplitAttention(nn.Module):
    """Attention whose matrices can be split by heads: the query, key and value of a head lie side by side."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width = width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, T, width] to the same shape."""
        batch, length, _ = inputs.shape
        query, key, value = self.qkv(inputs).view(batch, length, -1, 3, self.width).permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return joined


class FirstHalf(nn.Module):
    """Patches and the first blocks."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.patches, self.positions, self.blocks = whole.patches, whole.positions, whole.blocks[: LAYERS // 2]

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, patches, width]."""
        hidden: Tensor = self.patches(inputs).flatten(2).transpose(1, 2) + self.positions.weight
        for block in self.blocks:
            hidden = block(hidden)
        return hidden.contiguous()  # to be sent


class SecondHalf(nn.Module):
    """The last blocks and the classes."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.blocks, self.norm, self.head = whole.blocks[LAYERS // 2 :], whole.norm, whole.head

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [B, patches, width] to [B, classes]."""
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden).mean(1))
        return logits


def optimizer_of(parameters: list[Any]) -> torch.optim.Optimizer:
    """AdamW; a fused kernel takes split parameters or whole ones, not both."""
    split = [one for one in parameters if hasattr(one, "placements")]
    whole = [one for one in parameters if not hasattr(one, "placements")]
    groups = [{"params": each} for each in (split, whole) if each]
    return torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY, fused=True)


def batches(rank: int, replicas: int) -> Iterator[tuple[Tensor, Tensor]]:
    from dataclasses import replace

    import rueda
    from rueda.world import World
    from rueda.world.identity import identify

    identity = replace(identify(os.environ), rank=rank, size=replicas)
    loader = rueda.Loader(arrays(), BATCH // replicas, world=World(identity=identity))
    while True:
        yield from loader


def by_hand(case: str) -> Step:
    """Return a step of plain torch; the process group is there."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from rueda.records.recipe.parallel_form import mesh_of

    form, schedule, workers = CASES[case]
    sizes, network = mesh_of(form, workers), model()
    mesh = init_device_mesh("cpu", tuple(getattr(sizes, kind) for kind in sizes.kinds), mesh_dim_names=sizes.kinds)
    data = batches(dist.get_rank() // sizes.sharers, sizes.replicas)
    if sizes.pipeline > 1:
        return pipeline_step(network, mesh, schedule, data)
    if sizes.tensor > 1:
        plan: dict[str, Any] = {}
        for number, block in enumerate(network.blocks):  # type: ignore[arg-type]
            block.attention = SplitAttention(WIDTH, HEADS)
            for columns, rows in (("attention.qkv", "attention.out"), ("mlp.0", "mlp.2")):
                plan |= {f"blocks.{number}.{columns}": ColwiseParallel(), f"blocks.{number}.{rows}": RowwiseParallel()}
        parallelize_module(network, mesh["tensor"], plan)
    if sizes.sharded > 1:
        over = mesh if sizes.tensor == 1 else mesh["sharded"]
        for block in network.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=over)
        fully_shard(network, mesh=over)
        for module in network.modules():
            if isinstance(module, FSDPModule):  # Gloo has no average
                module.set_force_sum_reduction_for_comms(True)
    computing = nn.parallel.DistributedDataParallel(network) if form == "data" else network
    optimizer = optimizer_of(list(network.parameters()))
    total, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)

    def step() -> None:
        inputs, targets = next(data)
        optimizer.zero_grad()
        outputs = computing(inputs)
        loss = F.cross_entropy(outputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if sizes.data > 1 and sizes.tensor > 1:
            average(list(network.parameters()), mesh.get_group("data"))
        optimizer.step()
        total.add_(loss.detach(), alpha=len(targets))
        correct.add_((outputs.argmax(1) == targets).sum())

    return step


def average(parameters: list[Any], group: dist.ProcessGroup) -> None:
    """Average gradients over replicas in one all-reduce."""
    gradients = [one.grad.to_local() if hasattr(one.grad, "to_local") else one.grad for one in parameters]
    flat = torch.cat([one.reshape(-1) for one in gradients])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for one, piece in zip(gradients, torch.split(flat, [one.numel() for one in gradients]), strict=True):
        one.copy_(piece.view_as(one))


def pipeline_step(network: nn.Module, mesh: Any, schedule: str, data: Iterator[tuple[Tensor, Tensor]]) -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    place = mesh.get_local_rank("pipeline")
    half: nn.Module = (FirstHalf, SecondHalf)[place](network)
    optimizer = optimizer_of(list(half.parameters()))
    if mesh.ndim > 1:
        half = nn.parallel.DistributedDataParallel(half, process_group=mesh.get_group("data"))
    stage = PipelineStage(half, place, 2, torch.device("cpu"), group=mesh.get_group("pipeline"))
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
    running = kind(stage, MICRO_BATCHES, loss_fn=F.cross_entropy)
    total, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)

    def step() -> None:
        inputs, targets = next(data)
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if place == 0:
            running.step(inputs)
        else:
            outputs = running.step(target=targets, losses=losses)
            total.add_(torch.stack(losses).detach().mean(), alpha=len(targets))
            correct.add_((outputs.argmax(1) == targets).sum())
        optimizer.step()

    return step


# Measuring.


def measure(case: str, rounds: int) -> dict[str, Any]:
    """Return images/s of both in each round, and of Rueda's pipeline the bubble."""
    from rueda.measure.pipeline_idle import measure_idle
    from rueda.measure.worker_tensors import state_of_worker

    training = rueda_training(case)
    world = training.world
    steps: dict[str, Step] = {OURS: training.step, PEER: by_hand(case)}

    def block(name: str, num_steps: int) -> tuple[float, float]:
        world.barrier()
        started, worked = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            steps[name]()
        world.barrier()
        return time.perf_counter() - started, time.process_time() - worked

    for name in steps:
        block(name, 3)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    work: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name in list(steps)[:: 1 if number % 2 else -1]:
            seconds, worked = block(name, BLOCK)
            taken[name].append(BATCH * BLOCK / seconds)
            work[name].append(sum(world.all_gather_object(worked)) / BLOCK)
    found: dict[str, Any] = {"images_per_second": taken, "processor_seconds": work}
    state = state_of_worker(training)
    found["state_bytes"] = max(world.all_gather_object(state.state))
    if "pipeline" in case:
        idle = measure_idle(training, rate=RATE, num_steps=max(3, 2 * rounds))
        found["bubble"] = {"measured": idle.measured, "predicted": idle.predicted}
        found["micro_batches"] = idle.micro_batches
    return found


def peak(case: str, candidate: str) -> dict[str, float]:
    """Return how much a process's highest resident memory rises by a training of one candidate alone."""
    import rueda
    from rueda.measure.memory import peak_bytes, reset_peak

    world = rueda.init(seed=0)
    model()
    reset_peak(world.device)
    before = peak_bytes(world.device) or 0
    step = rueda_training(case).step if candidate == OURS else by_hand(case)
    for _ in range(4):
        step()
    return {"bytes": max(world.all_gather_object((peak_bytes(world.device) or 0) - before))}


def run(words: list[str], workers: int) -> Any:
    found = answer_of([__file__, *words], workers)
    if found is None:
        sys.exit(f"{' '.join(words)} failed")
    return found


def judged(case: str, found: dict[str, Any]) -> dict[str, Any]:
    """Add the ratios of a case to what was measured, with what is wanted."""
    both = zip(found["images_per_second"][OURS], found["images_per_second"][PEER], strict=True)
    work = zip(found["processor_seconds"][OURS], found["processor_seconds"][PEER], strict=True)
    added: dict[str, Any] = {
        "ratio": {"ratio": round(statistics.median(a / b for a, b in both), 3), "wanted": WANTED},
        "processor_ratio": round(statistics.median(a / b for a, b in work), 3),
    }
    if "bubble" in found:
        bubble = found["bubble"]
        apart = abs(bubble["measured"] - bubble["predicted"]) / bubble["predicted"]
        added["bubble"] = {**bubble, "apart": round(apart, 3), "wanted": WANTED_BUBBLE}
        if CASES[case][2] > usable_cores():  # a worker that could compute also waits for its core
            added["bubble"] |= {"wanted": None, "shares_cores": True}
    return found | added


def markdown(cases: dict[str, Any]) -> str:
    """Return the table of the documentation."""
    lines = [
        "| form | workers | beside plain torch | idle | predicted | state of a worker |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case, found in cases.items():
        idle = found.get("bubble")
        shares = ["", ""] if idle is None else [f"{100 * idle[key]:.1f} %" for key in ("measured", "predicted")]
        lines.append(
            f"| {case} | {CASES[case][2]} | {found['ratio']['ratio']:.2f} | {' | '.join(shares)} | "
            f"{found['state_bytes'] / 1e6:.1f} MB |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", help="one case, for the processes of this benchmark")
    parser.add_argument("--peak", help="the memory of one case, for the processes of this benchmark")
    parser.add_argument("--candidate", default=OURS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", action="append", help="a case; by default all of them")
    options = parser.parse_args()
    if options.measure or options.peak:
        answer = measure(options.measure, options.rounds) if options.measure else peak(options.peak, options.candidate)
        print(json.dumps(answer), flush=True)
        os._exit(0)  # a process group of torch that is taken down with the interpreter aborts now and then
    os.environ["RUEDA_TRANSPORT"] = "gloo"
    cases: dict[str, Any] = {}
    for case in options.only or CASES:
        workers = CASES[case][2]
        found = judged(case, run(["--measure", case, "--rounds", str(options.rounds)], workers))
        if workers == 2:
            found["peak_bytes"] = {
                candidate: run(["--peak", case, "--candidate", candidate], workers)["bytes"]
                for candidate in (OURS, PEER)
            }
        cases[case] = found
        print(f"  {case}: {found['ratio']['ratio']:.3f}", file=sys.stderr, flush=True)
    table = Table(title=f"global batch {BATCH}; medians over {options.rounds} rounds")
    for column in (
        "form",
        "images/s",
        "by hand",
        "ratio",
        "processor",
        "bubble (predicted)",
        "state",
        "peak (by hand)",
    ):
        table.add_column(column, justify="left" if column == "form" else "right")
    for case, found in cases.items():
        speeds = [statistics.median(found["images_per_second"][name]) for name in (OURS, PEER)]
        bubble, peaks = found.get("bubble"), found.get("peak_bytes")
        table.add_row(
            case, *(f"{speed:,.1f}" for speed in speeds), f"{found['ratio']['ratio']:.3f}",
            f"{found['processor_ratio']:.3f}",
            "" if bubble is None else f"{bubble['measured']:.1%} ({bubble['predicted']:.1%})",
            f"{found['state_bytes'] / 1e6:.1f} MB",
            "" if peaks is None else f"{peaks[OURS] / 1e6:.0f} ({peaks[PEER] / 1e6:.0f}) MB",
        )  # fmt: skip
    Console(width=140).print(table)
    result: dict[str, Any] = {"cases": cases, "rounds": options.rounds}
    if {"data", "sharded"} <= cases.keys():
        share = cases["sharded"]["state_bytes"] / cases["data"]["state_bytes"]
        result["sharded_state"] = {"ratio": round(share, 3), "wanted": WANTED_MEMORY}
        print(f"state of sharded over data: {share:.3f} (at most {WANTED_MEMORY} wanted)")
    save("parallel", result, seeds=(0,))


if __name__ == "__main__":
    main()
