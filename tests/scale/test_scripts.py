"""Serial scripts as people write them, on 2 and 3 workers: each ends with the parameters of its serial run."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import workers

SCRIPTS = Path(__file__).parent / "scripts"
EXACT = [
    "accumulation", "arguments", "balanced", "by_hand", "cnn_augmentation", "ema", "gan", "grad_scaler", "lstm", "mlp",
    "processes", "progress", "stream", "trainer_class", "transformer", "vae",
]  # fmt: skip


@contextlib.contextmanager
def within(folder: Path) -> Any:
    kept = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(kept)


def serial(name: str, folder: Path) -> Any:
    """Run a script as it is, in this process, and return what it has saved."""
    folder.mkdir()
    kept = sys.argv
    sys.argv = [name]
    try:
        with within(folder):
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    finally:
        sys.argv = kept
    return flat(torch.load(folder / "model.pt"))


def flat(state: Any) -> dict[str, torch.Tensor]:
    found = {}
    for key, value in state.items():
        found.update({f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
    return found


def scaled(name: str, folder: str, **options: Any) -> Any:
    """Run a script on the workers of the harness, in the process of each."""
    from rueda.check.scale.options import ScaleOptions
    from rueda.check.scale.scaling import Scaling
    from rueda.world import current

    with within(Path(folder)):
        scaling = Scaling(current(), ScaleOptions(**options))
        scaling.run([str(SCRIPTS / f"{name}.py")])
    return scaling


def check(name: str, folder: str) -> None:
    scaling = scaled(name, folder)
    assert scaling.tracker.num_shared_backward > scaling.tracker.num_backward // 2
    assert scaling.steps.num_shared_steps > 3 or name in ("by_hand", "accumulation")
    assert not any("draws random numbers" in note for note in scaling.notes.said)


@workers(2)
def on_2(name: str, folder: str) -> None:
    check(name, folder)


@workers(3)
def on_3(name: str, folder: str) -> None:
    check(name, folder)


@pytest.mark.parametrize("name", EXACT)
def test_the_parameters_are_those_of_the_serial_script(name: str, tmp_path: Path) -> None:
    expected = serial(name, tmp_path / "serial")
    for size, run in ((2, on_2), (3, on_3)):
        folder = tmp_path / str(size)
        folder.mkdir()
        run(name=name, folder=str(folder))
        found = flat(torch.load(folder / "model.pt"))
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            difference = float((found[key].double() - value.double()).abs().max() / value.double().abs().max().clamp(1))
            assert difference < 1e-6, f"{name} on {size} workers: {key} differs by {difference:.2g}"
