"""The top eigenvalue of a network's Hessian on 256 images: Rueda against PyHessian and curvlinops with eigsh.

    RUEDA_DATA=... python benchmarks/curvature.py [--case glyphs] [--repeats 3] [--keep FOLDER]

Each runs as its user would start it, from the model and the images to the number, in a process of its own that is
started anew in every round, in turns: Rueda to an error of 0.1 %, PyHessian with its default (100 power iterations at
most, until the value changes by less than 0.1 %), curvlinops' Hessian with scipy's eigsh at tol 1e-3. PyHessian often
stops short of the value; so it also runs with its tolerance tightened by tens until it is right to 0.1 %, and that time
is the one at equal accuracy. Errors are against the true value, found in float64 to a residual of 1e-7.

One thread, and the processor's time of that thread alone, without imports. Every round has another seed. The bar: a
third of PyHessian's time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import rueda
from _common import earlier, save
from rueda.examine.curvature.hessian import hessian
from rueda.examine.objective.objective import Objective
from rueda.tasks.models import small_cnn
from rueda.tasks.task import cross_entropy

NUM_IMAGES, BATCH, BAR = 256, 64, 1 / 3
ACCURACY, TIGHTEST = 1e-3, 1e-7
PEER, EQUAL = "pyhessian", "pyhessian, tightened"


def wide_cnn() -> nn.Module:
    """Build the CNN of 1.2 million parameters that many tutorials start with."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


CASES: dict[str, tuple[str, Callable[[], nn.Module], int]] = {
    "glyphs": ("glyphs-cnn", small_cnn, 400),
    "fashion-mnist": ("fashion-mnist-cnn", small_cnn, 600),
    "fashion-mnist, 1.2 M parameters": ("fashion-mnist-cnn", wide_cnn, 100),
}
"""task (for its images), network, and for how many steps of SGD it is trained first"""


def trained(case: str, file: Path) -> tuple[nn.Module, Tensor, Tensor]:
    """Train the network for a moment, or take it from an earlier time."""
    task, build, steps = CASES[case]
    images = rueda.load_task(task).load("train")
    assert isinstance(images, rueda.Arrays)
    torch.manual_seed(0)
    model = build()
    if file.exists():
        model.load_state_dict(torch.load(str(file), weights_only=True))
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        draws = torch.Generator().manual_seed(0)
        for _ in range(steps):
            chosen = torch.randint(0, len(images), (BATCH,), generator=draws)
            optimizer.zero_grad()
            outputs = model(images.floats(images.inputs[chosen]))
            torch.autograd.backward(cross_entropy(outputs, images.targets[chosen]).mean())
            optimizer.step()
        optimizer.zero_grad()
        torch.save(model.state_dict(), file)
    return model.eval(), images.floats(images.inputs[:NUM_IMAGES]), images.targets[:NUM_IMAGES]


# The parts, each in a process of its own.


def ours(model: nn.Module, x: Tensor, y: Tensor, seed: int, _: float) -> dict[str, float]:
    answer = hessian(Objective(model, cross_entropy, x, y), trace=False, density=False, sampling=False, seed=seed)
    assert answer.converged
    one = answer.eigenvalues[0]
    return {"value": one.value, "residual": one.residual, "error": one.error, "products": answer.products}


def pyhessian(model: nn.Module, x: Tensor, y: Tensor, seed: int, tolerance: float) -> dict[str, float]:
    from pyhessian import hessian as PyHessian  # type: ignore[import-untyped, unused-ignore]

    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls backward(create_graph=True), which torch warns about
        peer = PyHessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
        values, _ = peer.eigenvalues(maxIter=100 if tolerance == ACCURACY else 1000, tol=tolerance)
    return {"value": values[0]}


def curvlinops(model: nn.Module, x: Tensor, y: Tensor, seed: int, _: float) -> dict[str, float]:
    from curvlinops import HessianLinearOperator  # type: ignore[import-untyped, unused-ignore]
    from scipy.sparse.linalg import eigsh

    np.random.seed(seed)
    parameters: Any = [one for one in model.parameters() if one.requires_grad]
    operator = HessianLinearOperator(model, nn.CrossEntropyLoss(), parameters, [(x, y)], check_deterministic=False)
    return {"value": float(eigsh(operator.to_scipy(), k=1, which="LA", tol=ACCURACY)[0][0])}


def true_value(model: nn.Module, x: Tensor, y: Tensor, seed: int, _: float) -> dict[str, float]:
    wide = Objective(model.double(), cross_entropy, x.double(), y)
    answer = hessian(wide, tolerance=TIGHTEST, trace=False, density=False, sampling=False, seed=seed)
    assert answer.converged
    return {"value": answer.largest}


PARTS: dict[str, Callable[..., dict[str, float]]] = {
    "rueda": ours, PEER: pyhessian, "curvlinops": curvlinops, "true": true_value
}  # fmt: skip


def part(given: argparse.Namespace) -> None:
    """Run one part and write down what it found, and its time."""
    torch.set_num_threads(1)
    if given.part in ("rueda", "true"):
        rueda.init()  # as the command does
    subject = trained(given.case, given.file)
    if given.part == PEER:
        import pyhessian as _  # type: ignore[import-untyped, unused-ignore]
    elif given.part == "curvlinops":
        import curvlinops as _  # type: ignore[import-untyped, unused-ignore]
    import torch.fx.experimental.symbolic_shapes as _  # noqa: F401  torch loads it at the first product, for 0.2 s

    began = time.process_time()
    found = PARTS[given.part](*subject, given.seed, given.tolerance)
    seconds = time.process_time() - began
    given.answer.write_text(json.dumps({**found, "seconds": seconds, "tolerance": given.tolerance}))


def run(name: str, case: str, file: Path, seed: int, tolerance: float = ACCURACY) -> dict[str, float]:
    """Start a part and give what it wrote."""
    with TemporaryDirectory() as scratch:
        answer = Path(scratch, "answer.json")
        command = [
            sys.executable, __file__, "--part", name, "--case", case, "--file", str(file), "--seed", str(seed),
            "--tolerance", str(tolerance), "--answer", str(answer),
        ]  # fmt: skip
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr or done.stdout)
        found: dict[str, float] = json.loads(answer.read_text())
        return found


def one_round(case: str, file: Path, seed: int, true: float, without: list[str]) -> dict[str, dict[str, float]]:
    """Run each in turn; PyHessian also to the accuracy that it is asked for."""
    found = {name: run(name, case, file, seed) for name in PARTS if name != "true" and name not in without}
    found[EQUAL] = found[PEER]
    while abs(found[EQUAL]["value"] / true - 1) > ACCURACY and found[EQUAL]["tolerance"] > TIGHTEST:
        found[EQUAL] = run(PEER, case, file, seed, found[EQUAL]["tolerance"] / 10)
    return found


def conclude(case: str, true: float, rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Compare and print what the rounds gave."""
    table = Table("", "median seconds", "values", "largest error", title=f"{case}: {true:.5f}")
    rows: dict[str, Any] = {}
    for name in rounds[0]:
        mine = [one[name] for one in rounds]
        error = max(abs(one["value"] / true - 1) for one in mine)
        rows[name] = {
            "seconds": round(statistics.median(one["seconds"] for one in mine), 3),
            "values": [round(one["value"], 5) for one in mine], "largest_error": float(f"{error:.3g}"),
        }  # fmt: skip
        table.add_row(name, f"{rows[name]['seconds']:.2f}", str(rows[name]["values"]), f"{100 * error:.4f} %")
    rows[EQUAL]["tolerances"] = [one[EQUAL]["tolerance"] for one in rounds]
    rows["rueda"]["products"] = [int(one["rueda"]["products"]) for one in rounds]
    Console().print(table)
    shares = {
        name: round(statistics.median(one["rueda"]["seconds"] / one[name]["seconds"] for one in rounds), 3)
        for name in rounds[0] if name != "rueda"
    }  # fmt: skip
    print(f"{case}: of PyHessian's time {shares[PEER]:.3f}, at equal accuracy {shares[EQUAL]:.3f} (bar {BAR:.3f})")
    return {"true": true, "rueda_against": shares, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--keep", type=Path, help="folder for the trained networks, to be used again")
    parser.add_argument("--without", action="append", default=[], help="leave out a candidate")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--tolerance", type=float, default=ACCURACY, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is not None:
        part(given)
        return
    torch.set_num_threads(1)
    with TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        for case in CASES if given.case == "all" else [given.case]:
            file = folder / f"{case}-{CASES[case][2]}.pt"
            trained(case, file)
            true = run("true", case, file, 99)["value"]
            rounds = [one_round(case, file, 1 + number, true, given.without) for number in range(given.repeats)]
            results = {**earlier("curvature").get("cases", {}), case: conclude(case, true, rounds)}
            found = {"images": NUM_IMAGES, "repeats": given.repeats, "bar": round(BAR, 3), "cases": results}
            save("curvature", found, seeds=[0, 99, *range(1, 1 + given.repeats)])


if __name__ == "__main__":
    main()
