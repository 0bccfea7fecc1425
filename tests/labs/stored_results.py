"""Makes the results that the labs ship from those in the repository: ``python tests/labs/stored_results.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
STORED = ROOT / "src" / "rueda" / "labs" / "stored"
STUDIES = (
    "cifar10-8-workers",
    "cifar10-8-workers-control",
    "cifar10-64-workers",
    "fashion-mnist-8-workers",
    "fashion-mnist-64-workers",
    "glyphs-8-workers",
)
NOISE_EVERY = 8
"""one of so many measurements of the noise scale is stored: a figure shows no more"""


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return {"origin": file.relative_to(ROOT).as_posix(), **found}


def study(name: str) -> dict[str, Any]:
    """A study without the names of its runs, whose folders are not shipped."""
    found = read(RESULTS / name / "study.json")
    return {**found, "rows": [{**row, "runs": []} for row in found["rows"]]}


def curvature(name: str) -> dict[str, Any]:
    """The Hessians of a comparison, without the other measures of sharpness."""
    found = read(RESULTS / name / "curvature.json")
    return {**found, "members": [{**member, "sharpness": None} for member in found["members"]]}


def noise(name: str) -> dict[str, Any]:
    folder = RESULTS / name
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = [row for row in rows if row["kind"] == "noise" and row["group"] is None]
    kept = [row for at, row in enumerate(measured, 1) if at % NOISE_EVERY == 0]
    columns = {"updates": "step", "value": "value", "low": "low", "high": "high", "global_batch": "global_batch"}
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    return {
        "origin": (folder / "metrics.jsonl").relative_to(ROOT).as_posix(),
        "task": environment["task"],
        "columns": {name: [row[of] for row in kept] for name, of in columns.items()},
        "environment": environment,
    }


def predictions() -> dict[str, Any]:
    """The benchmark of the plan: its cases without the single rounds that they are the means of."""
    found = read(ROOT / "benchmarks" / "results" / "plan.json")
    return {name: found[name] for name in ("origin", "cases", "environment")}


def all_of_them() -> dict[str, dict[str, Any]]:
    """The contents of every stored file, by name."""
    return {
        **{f"study-{name}": study(name) for name in STUDIES},
        **{f"curvature-{name}": curvature(f"examine-{name}") for name in ("fashion-mnist", "cifar10")},
        "forecast-glyphs": read(RESULTS / "forecast-glyphs" / "forecast.json"),
        "forecast-fashion-mnist": read(RESULTS / "forecast-fashion-mnist" / "forecast.json"),
        "steps-fashion-mnist": read(RESULTS / "fashion-mnist-steps" / "steps.json"),
        "noise-fashion-mnist": noise("fashion-mnist-noise"),
        "predictions": predictions(),
    }  # fmt: skip


if __name__ == "__main__":
    for name, found in all_of_them().items():
        (STORED / f"{name}.json").write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
