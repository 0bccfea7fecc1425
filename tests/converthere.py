"""Serial scripts of ``tests/scale/scripts``, converted: run alone, or on the workers of the harness.

``python tests/converthere.py`` writes the diffs into docs/how-to/convert-a-script.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed

from rueda.check.convert import Conversion, convert
from rueda.check.convert.difference import unified_diff
from scalehere import SCRIPTS, flat, within

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "convert-a-script.md"
NAMES = sorted(file.stem for file in SCRIPTS.glob("*.py"))
STYLES = ("ddp", "rueda", "horovod")
UNSURE = {  # what becomes a TODO, and the lines of the serial script
    ("summed", "ddp"): ["summed.py:18: model[1] does not pass the wrapper"],
    ("tokens", "ddp"): ["tokens.py:41: say whether this loss is a mean or a sum over the batch"],
    ("tokens", "horovod"): ["tokens.py:41: say whether this loss is a mean or a sum over the batch"],
    ("vae", "ddp"): ["vae.py:34: this optimizer has a part of a model", "vae.py:39: encoder does not pass the wrapper"],
    ("by_hand", "horovod"): ["by_hand.py:11: average the gradients with hvd.allreduce"],
    ("gan", "horovod"): ["gan.py:13: several optimizers take gradients"],
    ("vae", "horovod"): ["vae.py:24: several optimizers", "vae.py:34: LBFGS calls its closure several times"],
    ("weak", "horovod"): ["weak.py:14: wrap this optimizer in hvd.DistributedOptimizer"],
}  # fmt: skip
UNSURE |= {(name, "rueda"): said for (name, to), said in list(UNSURE.items()) if to == "ddp"}
QUIET = {  # what a worker draws by itself is switched off, since other numbers are another training
    "Dropout2d(0.2)": "Dropout2d(0.0)", "Dropout(0.2)": "Dropout(0.0)", "Dropout(0.3)": "Dropout(0.0)",
    "Dropout(0.1)": "Dropout(0.0)",
    "dropout=0.1": "dropout=0.0", "dropout=0.5": "dropout=0.0", "torch.randn(size, 4)": "real.repeat(1, 2)",
    "0.1 * torch.randn(5)": "0", "random.randint(0, 2), np.random.randint(0, 3)": "1, 1",
    "torch.rand(1) < 0.5": "index % 2",
}  # fmt: skip


def renewed(page: str) -> str:
    """Return the page with the diffs as they are printed now; each stands below a comment with its ``--to``."""
    before = (ROOT / "examples" / "serial.py").read_bytes()

    def block(found: re.Match[str]) -> str:
        diff = unified_diff(before, convert(before, to=found[1]).after, "train.py").decode()
        return f"<!-- convert: {found[1]} -->\n```diff\n{diff}```"

    return re.sub(r"<!-- convert: (\w+) -->\n```diff\n.*?```", block, page, flags=re.DOTALL)


NO_PROCESSES = {
    ", num_workers=2, persistent_workers=True": "",
    ", num_workers=2": "",
}  # they start slowly in the harness


def quiet(name: str, *, processes: bool = False) -> bytes:
    """Return a script without dropout, noise and augmentation; with or without processes of its loaders."""
    text = (SCRIPTS / f"{name}.py").read_text()
    for old, new in (QUIET if processes else {**QUIET, **NO_PROCESSES}).items():
        text = text.replace(old, new)
    return text.encode()


@functools.cache
def converted(name: str, to: str, *, processes: bool = False) -> Conversion:
    return convert(quiet(name, processes=processes), to=to, name=f"{name}.py")


def run_here(content: bytes, folder: Path) -> Any:
    """Run a script in this process and return what it has saved."""
    folder.mkdir(exist_ok=True)
    file = folder / "train.py"
    file.write_bytes(content)
    with within(folder), mock.patch.object(sys, "argv", ["train.py"]):
        runpy.run_path(str(file), run_name="__main__")
    return flat(torch.load(folder / "model.pt"))


def run_on_these_workers(file: str, folder: str) -> None:
    """Run a converted script in the processes of the harness, which are connected already."""
    import rueda.hvd
    from rueda.world import current

    rueda.hvd.install()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    states = torch.random.get_rng_state()
    none = mock.Mock(return_value=None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"RANK": os.environ.get("RANK", "0")}))
        stack.enter_context(mock.patch.object(torch.distributed, "init_process_group", none))
        stack.enter_context(mock.patch.object(torch.distributed, "destroy_process_group", none))
        stack.enter_context(mock.patch.object(rueda, "finish", none, create=True))
        unseeded = dataclasses.replace(current(), seed=None)  # the harness has a seed
        stack.enter_context(mock.patch.object(rueda, "init", mock.Mock(return_value=unseeded), create=True))
        stack.enter_context(mock.patch.object(sys, "argv", ["train.py"]))
        stack.enter_context(within(Path(folder)))
        runpy.run_path(file, run_name="__main__")
    torch.random.set_rng_state(states)


def start(folder: Path, content: bytes, *launcher: str) -> subprocess.CompletedProcess[str]:
    """Run a script in processes of its own, in a folder that is new."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    shutil.rmtree(folder, ignore_errors=True)  # a script may refuse the folder of another start
    folder.mkdir()
    (folder / "train.py").write_bytes(content)
    command = [sys.executable, *launcher, "train.py"]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=180)


def difference(found: Any, expected: Any) -> float:
    """Return the largest difference of two state dicts, relative to the larger values."""
    assert found.keys() == expected.keys()
    return max(
        float((found[key].double() - value.double()).abs().max() / value.double().abs().max().clamp(1))
        for key, value in expected.items()
    )


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
