"""The modules and classes whose functions a script must leave alone: those of the observation, and those it sees by."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

_OURS = ("rueda.check.audit", "rueda.check.patches", "rueda.check.running", "rueda.assess")

_HOOKS = ("torch.optim.optimizer", "torch.nn.modules.module", "torch.utils.data.dataloader")


def owners() -> Iterator[Any]:
    """Iterate over the modules, and the classes of Rueda's."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS):
            yield module
            yield from (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == name)
    plain: list[ModuleType] = [hashlib, json, os, time, zlib, torch.autograd]
    yield from [*plain, torch, torch.nn.functional, dist, *(sys.modules[name] for name in _HOOKS)]
    yield from [torch.nn.Module, Optimizer, DataLoader, DistributedDataParallel, torch.Tensor]
