"""Run and study folders written by hand: the report reads files, so nothing has to be trained."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from rueda.records.curvature import (
    Eigenvalue,
    HessianResult,
    ModelCurvature,
    SharpnessMeasure,
    SharpnessResult,
    SpectralDensity,
)
from rueda.records.forecast import BandPoint, Check, CurvePoint, Estimate, Forecast, Law, Need, OnCluster
from rueda.records.landscape import Interpolation, Lines, ModelLandscape, Sheet, Surface, TrainingPath
from rueda.records.plan import Plan, PlanNoise, PlanRow
from rueda.records.profile import AllReduceTime, Communication, NoiseScale, Profile, StepTime
from rueda.records.recipe.named import NAMED
from rueda.records.recipe.recipe import Recipe
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
    recipe = recipe or Recipe(
        workers=workers, batch=512, epochs=epochs, scaling="linear", warmup_epochs=min(3, epochs), seed=seed
    )
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


def write_study(
    folder: Path, *, task: str = "glyphs-cnn", seeds: int = 2, table: Any = TABLE, steps: bool = True, **row: Any
) -> Path:
    """Write a study of the techniques with its runs; ``row`` overrides fields of every row.

    Without ``steps`` its runs have rows of epochs only.
    """
    rows = []
    base = table[0][1]
    for name, final, speed in table:
        workers = 1 if name.startswith("one-worker") else 8
        epochs = 96 if name == "longer-training" else 12
        runs = [f"runs/{len(rows)}-{seed}" for seed in range(seeds)]
        for seed, run in enumerate(runs):
            shown = {"task": task, "workers": workers, "final": final, "speed": speed, "seed": seed, "epochs": epochs}
            write_run(folder / run, **shown, rehearsed=workers > 1, steps=steps)
        updates = epochs * 49152 // (512 * workers)
        against = None if final is None else 100 * (final - base)
        verdict = "diverged" if final is None else "undecided" if seeds < 2 else "kept" if against >= -1 else "lost"
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
        {"batch": batch, "images_per_second": speed, "spread": 8, "milliseconds_per_update": 1e3 * batch / speed}
        for batch, speed in speeds.items()
    ]
    throughput = {"format": 1, "kind": "throughput", "task": "glyphs-cnn", "points": points, "saturates_at": 128}
    write_json(folder / "throughput.json", throughput)
    points = []
    for batch in (2**power for power in range(3, 14)):
        updates = round(90 + 46000 / batch)
        point = {"batch": batch, "updates": updates, "examples": 90 * batch + 46000, "rate": 0.05, "num_seeds": 1}
        points.append({**point, "seeds": [updates], "tried": [[0.05, updates], [0.1, None]]})
    fit = {"smallest_updates": 90, "smallest_examples": 46000, "critical_batch": 511, "interval": [400, 650]}
    steps = {"format": 1, "kind": "steps-to-target", "task": "glyphs-cnn", "target_accuracy": 0.8, "fit": fit}
    steps |= {"recipe": "", "epochs": 40}
    write_json(folder / "steps.json", {**steps, "points": points})
    noise = random.Random(0)
    xs = [noise.uniform(0, 10) for _ in range(100)]
    ys = [10 * (x + noise.gauss(0, 1)) + 2 for x in xs]

    def loss(w: float, b: float) -> float:
        return sum((w * x + b - y) ** 2 for x, y in zip(xs, ys, strict=True)) / len(xs)

    rows, paths = [], []
    for batch, epochs in ((1, 6), (8, 9), (32, 20), (100, 63)):
        w = b = 0.0
        path: dict[str, Any] = {"batch": batch, "w": [0.0], "b": [0.0], "loss": [loss(0.0, 0.0)]}
        for _ in range(epochs):
            order = noise.sample(range(100), 100)
            for start in range(0, 100 - batch + 1, batch):
                chosen = order[start : start + batch]
                errors = [(w * xs[i] + b - ys[i], xs[i]) for i in chosen]
                w -= 2e-3 * sum(error * x for error, x in errors) / batch
                b -= 2e-3 * sum(error for error, _ in errors) / batch
                path["w"].append(w)
                path["b"].append(b)
                path["loss"].append(loss(w, b))
        paths.append(path)
        rows.append(
            {
                "batch": batch,
                "epochs": epochs,
                "epochs_spread": 0.0,
                "updates": len(path["w"]) - 1,
                "updates_spread": 0.0,
                "w": w,
                "w_spread": 0.3,
                "b": b,
                "b_spread": 0.7,
                "loss": 99,
                "loss_spread": 0.0,
            }
        )
    write_json(
        folder / "gd.json",
        {
            "format": 1,
            "kind": "gd",
            "seeds": 20,
            "rate": 1e-3,
            "rows": rows,
            "paths": paths,
            "data": {"x": xs, "y": ys},
        },
    )
    return folder


def write_json(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


_X, _Y = (-1.0, 0.0, 1.0), (-1.0, 0.0)


def landscape_member(name: str, scale: float = 1.0, *, error: bool = True) -> ModelLandscape:
    """Give a model with all pictures of its landscape."""
    loss = tuple(tuple(scale * (0.1 + x * x + y * y) for x in _X) for y in _Y)
    sheets = tuple(Sheet(split=split, loss=loss, error=loss if error else None) for split in ("train", "test"))
    surface = Surface(x=_X, y=_Y, sheets=sheets, directions="filter-normalised, seed 0")
    trail = TrainingPath(
        steps=(0, 5, 9), x=(1.0, 0.4, 0.0), y=(-1.0, -0.4, 0.0), explained=(0.8, 0.15), loss=(3.0, 2.0, 1.0)
    )
    rows = tuple(replace(sheet, loss=loss[:1], error=loss[:1] if error else None) for sheet in sheets)
    return ModelLandscape(
        name=name, weights="w", num_parameters=7, num_examples=4, step=9, surface=surface,
        path=replace(surface, trail=trail), lines=Lines(alphas=_X, sheets=rows, directions="d"),
        interpolation=Interpolation(start=name, end="b", alphas=_X, sheets=rows),
    )  # fmt: skip


def _curve(top: float) -> SpectralDensity:
    positions = tuple(top * k / 50 - 0.1 for k in range(51))
    values = tuple(math.exp(-5 * x * x) for x in positions)
    return SpectralDensity(
        positions=positions, values=values, errors=tuple(0.1 * value for value in values), width=0.1, mean=0.02,
        mean_error=0.001, mean_square=0.5, mean_square_error=0.05, negative=0.2, probes=6, steps=40,
        lows=tuple(0.8 * value for value in values), highs=tuple(1.5 * value for value in values),
    )  # fmt: skip


def curvature_member(
    name: str, seed: int, top: float, *, converged: bool = True, keskar: float = 2.0
) -> ModelCurvature:
    """Give a model whose curvature and sharpness are known."""
    found = HessianResult(
        loss=0.3, gradient_norm=0.1, examples=1024, parameters=16938, converged=converged, tolerance=1e-3,
        eigenvalues=(
            Eigenvalue(value=top, residual=1e-4 * top, error=1e-4 * top, sampling_error=0.1 * top),
            Eigenvalue(value=top / 2, residual=0.01, error=0.01, sampling_error=0.05 * top),
        ),
        lowest=Eigenvalue(value=-0.5, residual=0.2, error=0.2), trace=10 * top, trace_error=0.1 * top,
        trace_converged=True, density=_curve(top), products=50, groups=16, trace_probes=8, trace_sampling_error=top,
    )  # fmt: skip
    measures = tuple(
        SharpnessMeasure(kind=kind, radius=radius, value=value, highest=1.0, evaluations=10, converged=True)
        for kind, radius, value in (("keskar", 1e-3, keskar), ("keskar", 5e-4, keskar / 2), ("sam", 0.05, 0.1))
    )
    sharp = SharpnessResult(loss=0.3, examples=1024, parameters=16938, measures=measures)
    return ModelCurvature(name=name, seed=seed, hessian=found, sharpness=sharp, test_accuracy=0.9)


def profile(task: str = "glyphs-cnn") -> Profile:
    """Give a profile of three batches, one link and one noise scale."""

    def step(batch: int) -> StepTime:
        seconds = 0.004 + batch / 5000
        parts = {
            "data": 0.05 * seconds,
            "forward": 0.3 * seconds,
            "backward": 0.6 * seconds,
            "optimizer": 0.05 * seconds,
        }
        return StepTime(batch=batch, seconds=seconds, spread=0.02 * seconds, repeats=9, **parts)

    points = tuple(AllReduceTime(bytes=size, seconds=7e-4 + size / 1e9) for size in (4, 4096, 2**20, 2**24))
    link = Communication(workers=2, backend="gloo", points=points, latency=7e-4, bandwidth=1e9, residual=0.02)
    noise = NoiseScale(value=980, low=700, high=float("nan"), variance=98.0, square=0.1, step=200, steps=200)
    return Profile(
        task=task, device="cpu", threads=1, precision="float32", parameters=482_442, gradient_bytes=4 * 482_442,
        examples=50_000, recipe="", steps=tuple(step(batch) for batch in (16, 64, 256)), communication=(link,),
        noise=(noise,),
    )  # fmt: skip


def plan() -> Plan:
    """Give a plan for 1, 2 and 4 workers, one of which is recommended."""
    rows = []
    for workers in (1, 2, 4):
        step, worth = 0.02 + 0.005 * (workers > 1), 1 / (1 + workers / 4)
        rows.append(
            PlanRow(
                workers=workers, nodes=1, scaling="weak", local_batch=64, global_batch=64 * workers, step_seconds=step,
                compute_seconds=0.02, sync_seconds=0.01, exposed_seconds=0.005, straggler_seconds=0.001,
                images_per_second=64 * workers / step, efficiency=0.02 / step, speedup=workers * 0.02 / step,
                statistical_efficiency=worth, goodput=64 * workers / step * worth, updates=1000 / workers, epochs=5.0,
                hours=1 / workers, money=3.0, best=True, recommended=workers == 4,
            )
        )  # fmt: skip
    noise = PlanNoise(value=100.0, first=50.0, low=40.0, high=None, step=100, epochs=1.0, source="workers")
    return Plan(
        task="glyphs-cnn", device="cpu", cluster="lab", cluster_title="The lab", examples=12_000, base_batch=64,
        base_rate=0.05, base_epochs=5, noise=noise, rows=tuple(rows), currency="USD", advice=("Take four.",),
    )  # fmt: skip


def forecast() -> Forecast:
    """Give a forecast with all of its parts."""
    sizes = (100, 200, 400, 800)
    points = tuple(CurvePoint(examples=m, passes=4.0, updates=m, errors=(2 * m**-0.4, 2.1 * m**-0.4)) for m in sizes)
    law = Law(
        alpha=Estimate(value=2.0, low=1.8, high=2.2), beta=Estimate(value=-0.4, low=-0.45, high=-0.35),
        gamma=Estimate(value=0.01, low=0.0, high=0.02), confidence=0.95, fitted=sizes, misfit=0.5, reach=9000.0,
        irreducible_from=1e5,
    )  # fmt: skip
    band = tuple(BandPoint(examples=m, error=law.error(m), low=0.9 * law.error(m), high=1.1) for m in (100.0, 9000.0))
    need = Estimate(value=4000.0, low=3000.0, high=6000.0)
    whole = CurvePoint(examples=1600, passes=4.0, updates=1600, errors=(0.11,))
    return Forecast(
        task="glyphs-cnn", examples=1600, test_examples=400, chance=0.9, batch=64, epochs=4, growth=0.5, recipe="",
        points=points, whole=whole, target_error=0.08, law=law, band=band,
        need=Need(examples=need, passes=3.0, updates=187.5, processed=12_000.0, seconds=60.0),
        cluster=OnCluster(cluster="lab", workers=2, local_batch=32, images_per_second=900.0, hours=need, cost=3.5),
        checks=(Check(point=whole, predicted=Estimate(value=0.1, low=0.09, high=0.12), inside=True),),
    )  # fmt: skip
