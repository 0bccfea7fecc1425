"""The top eigenvalue of a network's Hessian on 256 images: Rueda against PyHessian and curvlinops with eigsh.

    RUEDA_DATA=... python benchmarks/curvature.py [--case glyphs] [--repeats 3] [--keep FOLDER]

Each is called as its user would call it, from the model and the images to the number: Rueda to a residual of 0.1 %,
PyHessian with its default (100 power iterations at most, until the value changes by less than 0.1 %), curvlinops'
Hessian with scipy's eigsh at tol 1e-3. Beside the time stands the error against the true value, which is found in
float64 to a residual of 1e-7. One thread; processor time, rounds interleaved, another seed each round.

The bar: a third of PyHessian's time. How the two compare depends on the spectrum: where the top eigenvalue stands far
above the second, power iteration ends after about ten products, and the bar is missed (the Fashion-MNIST case, kept
for that); where they are close, it needs many more and ends early (the glyphs case).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import rueda
from _common import RESULTS, compare, ratio, save
from rueda.examine.hessian import hessian
from rueda.examine.objective import Objective
from rueda.tasks.models import small_cnn
from rueda.tasks.task import cross_entropy
from rueda.world import malloc

NUM_IMAGES, BATCH, BAR = 256, 64, 1 / 3
CASES: dict[str, tuple[str, Callable[[], nn.Module], int]] = {
    "glyphs": ("glyphs-cnn", small_cnn, 400),
    "fashion-mnist": ("fashion-mnist-cnn", small_cnn, 600),
}
"""task (for its images), network, and for how many steps of SGD it is trained first"""


def trained(case: str, keep: Path | None = None) -> tuple[nn.Module, Tensor, Tensor]:
    """Train the network for a moment, or take it from an earlier time."""
    task, build, steps = CASES[case]
    images = rueda.load_task(task).load("train")
    assert isinstance(images, rueda.Arrays)
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    draws = torch.Generator().manual_seed(0)
    file = None if keep is None else keep / f"{case}-{steps}.pt"
    there = file is not None and file.exists()
    if there:
        model.load_state_dict(torch.load(str(file), weights_only=True))
    for _ in range(0 if there else steps):
        chosen = torch.randint(0, len(images), (BATCH,), generator=draws)
        optimizer.zero_grad()
        outputs = model(images.floats(images.inputs[chosen]))
        torch.autograd.backward(cross_entropy(outputs, images.targets[chosen]).mean())
        optimizer.step()
    optimizer.zero_grad()
    if file is not None and not there:
        torch.save(model.state_dict(), file)
    return model.eval(), images.floats(images.inputs[:NUM_IMAGES]), images.targets[:NUM_IMAGES]


def candidates(
    model: nn.Module, x: Tensor, y: Tensor, found: dict[str, list[float]], products: dict[str, int]
) -> dict[str, Callable[[], object]]:
    seeds = {"rueda": 0, "pyhessian": 0, "curvlinops": 0}

    def draw(name: str) -> int:
        seeds[name] += 1
        torch.manual_seed(seeds[name])
        np.random.seed(seeds[name])
        return seeds[name]

    def ours() -> None:
        answer = hessian(Objective(model, cross_entropy, x, y), trace=False, density=False, seed=draw("rueda"))
        assert answer.converged
        found["rueda"].append(answer.largest)
        products["rueda"] = answer.products

    def pyhessian() -> None:
        from pyhessian import hessian as PyHessian  # type: ignore[import-untyped, unused-ignore]

        draw("pyhessian")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it calls backward(create_graph=True), which torch warns about
            values, _ = PyHessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False).eigenvalues()
        model.zero_grad()
        found["pyhessian"].append(values[0])

    def curvlinops() -> None:
        from curvlinops import HessianLinearOperator  # type: ignore[import-untyped, unused-ignore]
        from scipy.sparse.linalg import eigsh

        draw("curvlinops")
        parameters: Any = [one for one in model.parameters() if one.requires_grad]
        operator = HessianLinearOperator(
            model, nn.CrossEntropyLoss(), parameters, [(x, y)], check_deterministic=False
        ).to_scipy()
        found["curvlinops"].append(float(eigsh(operator, k=1, which="LA", tol=1e-3)[0][0]))

    return {"rueda": ours, "pyhessian": pyhessian, "curvlinops": curvlinops}


def true_value(model: nn.Module, x: Tensor, y: Tensor) -> float:
    wide = Objective(model.double(), cross_entropy, x.double(), y)
    answer = hessian(wide, tolerance=1e-7, trace=False, density=False, seed=99)
    model.float()
    assert answer.converged
    return answer.largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--keep", type=Path, help="folder for the trained networks, to be used again")
    parser.add_argument("--without", action="append", default=[], help="leave out a candidate")
    given = parser.parse_args()
    torch.set_num_threads(1)
    malloc.tune()
    results: dict[str, dict[str, Any]] = {}
    for case in CASES if given.case == "all" else [given.case]:
        model, x, y = trained(case, given.keep)
        true = true_value(model, x, y)
        found: dict[str, list[float]] = {"rueda": [], "pyhessian": [], "curvlinops": []}
        products: dict[str, int] = {}
        chosen = candidates(model, x, y, found, products)
        chosen = {name: run for name, run in chosen.items() if name not in given.without}
        seconds = compare(chosen, given.repeats, warmup=0, clock=time.process_time)
        table = Table("", "median seconds", "against PyHessian", "values", "largest error", title=f"{case}: {true:.5f}")
        results[case] = {"true": true, "products": products["rueda"], "rows": {}}
        for name in chosen:
            error = max(abs(value / true - 1) for value in found[name])
            share = ratio(seconds, name, "pyhessian")
            values = [round(value, 5) for value in found[name]]
            row = {"seconds": round(statistics.median(seconds[name]), 3), "against_pyhessian": round(share, 3)}
            results[case]["rows"][name] = {**row, "values": values, "largest_error": float(f"{error:.3g}")}
            table.add_row(name, f"{row['seconds']:.2f}", f"{share:.3f}", str(values), f"{100 * error:.4f} %")
        Console().print(table)
        mine = results[case]["rows"]["rueda"]["against_pyhessian"]
        print(f"{case}: {mine:.3f} of PyHessian's time (bar {BAR:.3f}), {products['rueda']} products")
        if (RESULTS / "curvature.json").exists():  # the other case stays as it was measured
            results = {**json.loads((RESULTS / "curvature.json").read_text())["cases"], **results}
        save("curvature", {"images": NUM_IMAGES, "repeats": given.repeats, "bar": round(BAR, 3), "cases": results})


if __name__ == "__main__":
    main()
