"""Run and study folders written by hand: the report reads files, so nothing has to be trained."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from rueda.records.landscape import Interpolation, Lines, Member, Sheet, Surface, Trail
from rueda.records.named import NAMED
from rueda.records.recipe import Recipe
from rueda.records.run import Row

ABOUT: dict[str, Any] = {
    "time": "2026-03-01T10:00:00+00:00",
    "machine": {
        "system": "Linux x86_64",
        "processor": "Example CPU",
        "cores": 2,
        "memory_bytes": 8 * 2**30,
        "gpus": [],
    },
    "versions": {"python": "3.11.2", "rueda": "0.1.0", "torch": "2.13.0"},
    "commit": "0123456789ab",
    "command": "rueda study glyphs-cnn --workers 8",
}

# name, final test accuracy, images/s
TABLE = [
    ("one-worker", 0.871, 5200),
    ("naive", 0.583, 6100),
    ("batch-norm", 0.702, 4300),
    ("linear-scaling", None, 6080),
    ("linear-warmup", 0.866, 6050),
    ("sqrt-scaling", 0.781, 6110),
    ("ghost-batch-norm", 0.842, 3900),
    ("longer-training", 0.879, 6090),
    ("batch-growth", 0.868, 5600),
    ("lars", 0.731, 5700),
    ("lamb", 0.874, 5500),
    ("adascale", 0.851, 4800),
]


def write_run(
    folder: Path,
    *,
    task: str = "glyphs-cnn",
    workers: int = 8,
    final: float | None = 0.8,
    speed: float = 6000,
    epochs: int = 12,
    seed: int = 0,
    rehearsed: bool = True,
    about: dict[str, Any] | None = None,
    recipe: Recipe | None = None,
    steps: bool = True,
) -> Path:
    """Write a run folder; ``final`` None: it diverges in the fourth epoch."""
    recipe = recipe or Recipe(workers=workers, batch=512, epochs=epochs, scaling="linear", warmup_epochs=3, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    recipe.save(folder / "recipe.toml")
    environment = {"format": 1, "task": task, "rehearsed": rehearsed, **ABOUT, **(about or {})}
    (folder / "environment.json").write_text(json.dumps(environment))
    noise = random.Random(f"{folder.name}{seed}")
    examples, batch = 49152, recipe.global_batch
    an_epoch = examples // batch
    rows = []
    for epoch in range(1, epochs + 1):
        diverged = final is None and epoch >= 4
        grown = (1 - math.exp(-epoch / 2.5)) / (1 - math.exp(-epochs / 2.5))
        accuracy = 0.1 + ((final or 0.4) - 0.1) * grown + noise.gauss(0, 0.006)
        done = epoch * an_epoch
        shared = {"seconds": done * batch / speed, "images_per_second": speed, "global_batch": batch}
        if steps:
            for step in range(done - an_epoch + 1, done + 1, 2):
                rise = min(1.0, step / an_epoch / 3)
                rows.append(
                    Row(
                        kind="step",
                        epoch=epoch,
                        step=step,
                        examples=step * batch,
                        train_loss=1.0,
                        train_accuracy=None,
                        rate=0.05 * (1 + (workers - 1) * rise) * (1 + math.cos(math.pi * step / an_epoch / epochs)) / 2,
                        rehearsed=rehearsed,
                        **shared,
                    )
                )
        rows.append(
            Row(
                kind="epoch",
                epoch=epoch,
                step=done,
                examples=done * batch,
                rate=0.05 * workers,
                train_loss=math.nan if diverged else 2.3 * (1 - grown) + 0.2,
                train_accuracy=None if diverged else min(1.0, accuracy + 0.03),
                test_loss=math.nan if diverged else 2.3 * (1 - grown) + 0.3,
                test_accuracy=None if diverged else accuracy,
                rehearsed=rehearsed,
                diverged=diverged,
                **shared,
            )
        )
        if diverged:
            break
    (folder / "metrics.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    return folder


def write_study(folder: Path, *, task: str = "glyphs-cnn", seeds: int = 2, table: Any = TABLE, **row: Any) -> Path:
    """Write a study of the techniques with its runs; ``row`` overrides fields of every row."""
    rows = []
    base = table[0][1]
    for name, final, speed in table:
        workers = 1 if name == "one-worker" else 8
        epochs = 96 if name == "longer-training" else 12
        runs = [f"runs/{len(rows)}-{seed}" for seed in range(seeds)]
        for seed, run in enumerate(runs):
            shown = {"task": task, "workers": workers, "final": final, "speed": speed, "seed": seed, "epochs": epochs}
            write_run(folder / run, **shown, rehearsed=workers > 1)
        updates = epochs * 49152 // (512 * workers)
        against = None if final is None else 100 * (final - base)
        verdict = "diverged" if final is None else "kept" if against >= -1 else "lost"
        rows.append(
            {
                "name": name,
                "summary": NAMED[name].summary if name in NAMED else "a technique",
                "workers": workers,
                "global_batch": 512 * workers,
                "epochs": epochs,
                "updates": updates,
                "test_accuracy": final,
                "test_accuracy_spread": None if final is None else 0.004,
                "train_accuracy": None if final is None else final + 0.03,
                "train_accuracy_spread": None,
                "seconds": epochs * 49152 / speed,
                "images_per_second": speed,
                "rehearsed": workers > 1,
                "seeds": list(range(seeds)),
                "diverged": seeds if final is None else 0,
                "runs": runs,
                "against_one_worker": None if workers == 1 else against,
                "verdict": None if workers == 1 else verdict,
                **row,
            }
        )
    study = {"format": 1, "kind": "techniques", "task": task, "workers": 8, "epochs": 12, "environment": ABOUT}
    write_json(folder / "study.json", {**study, "command": ABOUT["command"], "rows": rows})
    return folder


def write_others(folder: Path) -> Path:
    """Write the studies of throughput, steps to target and the linear model."""
    speeds = {8: 322, 16: 485, 32: 575, 64: 628, 128: 652, 256: 657, 512: 680, 700: 683}
    points: list[dict[str, Any]] = [
        {"batch": batch, "images_per_second": speed, "spread": 8} for batch, speed in speeds.items()
    ]
    throughput = {"format": 1, "kind": "throughput", "task": "glyphs-cnn", "points": points, "saturates_at": 128}
    write_json(folder / "throughput.json", throughput)
    points = [
        {"batch": 2**power, "updates": round(90 + 46000 / 2**power), "examples": 90 * 2**power + 46000, "rate": 0.05}
        for power in range(3, 14)
    ]
    fit = {"smallest_updates": 90, "smallest_examples": 46000, "critical_batch": 511, "interval": [400, 650]}
    steps = {"format": 1, "kind": "steps-to-target", "task": "glyphs-cnn", "target_accuracy": 0.8, "fit": fit}
    write_json(folder / "steps.json", {**steps, "points": points})
    noise = random.Random(0)
    xs = [noise.uniform(0, 10) for _ in range(100)]
    ys = [10 * (x + noise.gauss(0, 1)) + 2 for x in xs]
    rows, paths = [], []
    for batch, epochs in ((1, 6), (8, 9), (32, 20), (100, 63)):
        w = b = 0.0
        path: dict[str, Any] = {"batch": batch, "w": [0.0], "b": [0.0]}
        for _ in range(epochs):
            order = noise.sample(range(100), 100)
            for start in range(0, 100 - batch + 1, batch):
                chosen = order[start : start + batch]
                errors = [(w * xs[i] + b - ys[i], xs[i]) for i in chosen]
                w -= 2e-3 * sum(error * x for error, x in errors) / batch
                b -= 2e-3 * sum(error for error, _ in errors) / batch
                path["w"].append(w)
                path["b"].append(b)
        paths.append(path)
        rows.append(
            {
                "batch": batch,
                "epochs": epochs,
                "updates": len(path["w"]) - 1,
                "w": w,
                "w_spread": 0.3,
                "b": b,
                "loss": 99,
            }
        )
    write_json(
        folder / "gd.json", {"format": 1, "kind": "gd", "rows": rows, "paths": paths, "data": {"x": xs, "y": ys}}
    )
    return folder


def write_json(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


_X, _Y = (-1.0, 0.0, 1.0), (-1.0, 0.0)


def landscape_member(name: str, scale: float = 1.0, *, error: bool = True) -> Member:
    """Give a model with all pictures of its landscape."""
    loss = tuple(tuple(scale * (0.1 + x * x + y * y) for x in _X) for y in _Y)
    sheets = tuple(Sheet(split=split, loss=loss, error=loss if error else None) for split in ("train", "test"))
    surface = Surface(x=_X, y=_Y, sheets=sheets, directions="filter-normalised, seed 0")
    trail = Trail(steps=(0, 5, 9), x=(1.0, 0.4, 0.0), y=(-1.0, -0.4, 0.0), explained=(0.8, 0.15), loss=(3.0, 2.0, 1.0))
    rows = tuple(replace(sheet, loss=loss[:1], error=loss[:1] if error else None) for sheet in sheets)
    return Member(
        name=name, weights="w", num_parameters=7, num_examples=4, step=9, surface=surface,
        path=replace(surface, trail=trail), lines=Lines(alphas=_X, sheets=rows, directions="d"),
        interpolation=Interpolation(start=name, end="b", alphas=_X, sheets=rows),
    )  # fmt: skip
