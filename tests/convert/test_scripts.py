"""The serial scripts of ``rueda scale``, converted: alone and on two workers they end where the serial ones do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from converthere import NAMES, STYLES, UNSURE, converted, difference, quiet, run_here, run_on_these_workers, start
from harness import workers
from rueda.check.convert import convert
from scalehere import SCRIPTS, flat

pytestmark = pytest.mark.slow


@workers(2)
def on_2(file: str, folder: str) -> None:
    run_on_these_workers(file, folder)


@pytest.mark.parametrize("to", STYLES)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_sure_is_a_line_and_a_warning(name: str, to: str) -> None:
    conversion = converted(name, to)
    expected = UNSURE.get((name, to), [])
    assert [said[: len(words)] for said, words in zip(conversion.warnings, expected, strict=True)] == expected
    assert conversion.after.count(b"# TODO(rueda): ") == len(expected)


def test_most_scripts_are_converted_without_a_doubt() -> None:
    for to, least in {"ddp": 19, "rueda": 19, "horovod": 17}.items():
        assert sum((name, to) not in UNSURE for name in NAMES) >= least


@pytest.mark.parametrize("name", NAMES)
def test_converted_scripts_end_where_the_serial_one_does(name: str, tmp_path: Path) -> None:
    """Alone to the last bit; on two workers to 1e-6, batch norm's statistics and what is not sure apart."""
    serial = run_here(quiet(name), tmp_path / "serial")
    assert difference(run_here(converted(name, "ddp").after, tmp_path / "alone"), serial) == 0
    for to in STYLES:
        if (name, to) in UNSURE:
            continue
        folder = tmp_path / to
        folder.mkdir()
        (folder / "train.py").write_bytes(converted(name, to).after)
        on_2(file=str(folder / "train.py"), folder=str(folder))
        found = difference(flat(torch.load(folder / "model.pt")), serial)
        assert found < (0.2 if name in ("batch_norm", "evaluations") else 1e-6), (
            f"{to} on 2 workers differs by {found:.2g}"
        )


STARTS = {
    "torchrun": ("mlp", "ddp", ["-m", "torch.distributed.run", "--nproc-per-node", "2"]),
    "torchrun, Rueda": ("stream", "rueda", ["-m", "torch.distributed.run", "--nproc-per-node", "2"]),
    "rueda run": ("arguments", "ddp", ["-m", "rueda", "run", "-np", "2"]),
    "rueda run, Horovod": ("processes", "horovod", ["-m", "rueda", "run", "-np", "2"]),
    "alone, Rueda": ("mlp", "rueda", []),
}


@pytest.mark.parametrize(("name", "to", "launcher"), STARTS.values(), ids=STARTS)
def test_launchers_start_what_was_converted(name: str, to: str, launcher: list[str], tmp_path: Path) -> None:
    done = start(tmp_path / "run", converted(name, to, processes=True).after, *launcher)
    assert done.returncode == 0, done.stderr
    serial = run_here(quiet(name, processes=True), tmp_path / "serial")
    assert difference(flat(torch.load(tmp_path / "run" / "model.pt")), serial) < 1e-6
    lines = [line for line in done.stdout.splitlines() if line]
    assert len(lines) == len(set(lines)), "several workers have printed"


@workers(2)
def with_noise(file: str, folder: str) -> None:
    import random

    import numpy as np

    from rueda.world import current

    run_on_these_workers(file, folder)
    for drawn in (random.random(), float(np.random.rand())):
        first, second = current().all_gather_object(drawn)
        assert first != second, "the same augmentation on all workers"


@pytest.mark.parametrize("to", STYLES)
def test_augmentation_differs_between_the_workers(to: str, tmp_path: Path) -> None:
    content = (SCRIPTS / "cnn_augmentation.py").read_bytes()
    (tmp_path / "train.py").write_bytes(convert(content, to=to).after)
    with_noise(file=str(tmp_path / "train.py"), folder=str(tmp_path))
