"""``python -m rueda.check.scale.lightning_script train.py``: one worker of a Lightning script.

A script with ``Trainer(devices=1)``, or on a machine without a GPU with no ``devices`` at all, would be N separate
trainings on N workers, each of them complete. Lightning can train on all of them together if it is told so; then it
divides the data itself. So ``Trainer`` and ``Fabric`` get the number of workers and the strategy ``ddp``, unless the
script names other ones.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rueda.check.patches import Patches
from rueda.check.running import run_script
from rueda.world.identity import Identity, identify

_CLASSES = (
    ("lightning", "lightning.pytorch", "Trainer"),
    ("lightning", "lightning.fabric", "Fabric"),
    ("pytorch_lightning", "pytorch_lightning", "Trainer"),
    ("lightning_fabric", "lightning_fabric", "Fabric"),
)
_ONE = (1, "1", "auto", [0], "0", None)  # each of which means a single device on a CPU


def distributed(options: dict[str, Any], worker: Identity) -> dict[str, Any]:
    """Return the arguments of a ``Trainer`` or a ``Fabric`` for all workers instead of one device.

    >>> distributed({"devices": 1, "max_epochs": 3}, Identity(rank=1, size=4, local_rank=1, local_size=2))
    {'devices': 2, 'max_epochs': 3, 'num_nodes': 2, 'strategy': 'ddp'}
    >>> distributed({"devices": 2, "strategy": "fsdp"}, Identity(size=2, local_size=2))
    {'devices': 2, 'strategy': 'fsdp', 'num_nodes': 1}
    """
    told = dict(options)
    if told.get("devices", "auto") in _ONE:
        told["devices"] = worker.local_size
    told.setdefault("num_nodes", worker.size // worker.local_size)
    if told.get("strategy", "auto") == "auto":
        told["strategy"] = "ddp"
    return told


def main() -> None:
    """Run the script with a ``Trainer`` that knows the workers."""
    command = sys.argv[1:]
    if not command or not Path(command[0]).is_file():
        sys.exit("rueda: expected a script that exists; `rueda scale -np 2 train.py` starts this module")
    worker = identify(os.environ)
    os.environ.setdefault("NODE_RANK", str(worker.rank // worker.local_size))
    text = Path(command[0]).read_text(encoding="utf-8")
    patches = Patches()
    for package, module, name in _CLASSES:
        if package in text:
            try:
                patches.replace(getattr(import_module(module), name), "__init__", _telling(worker))
            except ImportError:
                continue  # the script will say what is missing
    run_script(command)


def _telling(worker: Identity) -> Any:
    def replacement(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **options: Any) -> None:
            original(self, *args, **distributed(options, worker))

        return __init__

    return replacement


if __name__ == "__main__":
    main()
