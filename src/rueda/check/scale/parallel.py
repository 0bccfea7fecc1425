"""Scripts that are parallel already: they are left alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rueda.errors import ScaleError, read_failure

_MODULES = {
    "lightning": "Lightning", "pytorch_lightning": "Lightning", "lightning_fabric": "Lightning Fabric",
    "accelerate": "Accelerate", "horovod": "Horovod", "deepspeed": "DeepSpeed", "rueda": "Rueda", "ignite": "Ignite",
    "composer": "Composer", "fairscale": "FairScale",
}  # fmt: skip
_SERIAL = re.compile(r"rueda\.(?:tasks|optim|nn)\b")  # data sets, optimizers and layers for any script
_NAMES = {
    "init_process_group": "torch.distributed", "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel", "fully_shard": "fully_shard",
    "DistributedSampler": "DistributedSampler", "Seq2SeqTrainer": "Hugging Face's Trainer",
    "TrainingArguments": "Hugging Face's Trainer",
}  # fmt: skip


def library_of(script: str | Path) -> str:
    """Return what makes a script parallel; nothing if it is serial.

    Args:
        script: the file.
    """
    try:
        text = Path(script).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScaleError(str(script), expected="a Python script", got=read_failure(error), do="name another") from None
    try:
        return library_in(text)
    except SyntaxError as error:
        where = f"{script}:{error.lineno}"
        raise ScaleError(where, expected="Python", got=error.msg, do="correct the script") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL character, or brackets without end
        raise ScaleError(str(script), expected="Python", got=str(error), do="correct the script") from None


def library_in(text: str) -> str:
    """Return what makes the text of a script parallel.

    >>> library_in("import torch.distributed as dist; dist.init_process_group()")
    'torch.distributed'
    >>> library_in("from transformers import AutoModel, TrainingArguments"), library_in("import torch")
    ("Hugging Face's Trainer", '')
    >>> library_in("import rueda"), library_in("from rueda.tasks.datasets import glyphs")
    ('Rueda', '')
    """
    for node in ast.walk(ast.parse(text)):
        modules, names = [], []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules, names = [node.module or ""], [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Name):
            names = [node.id]
        libraries = [module.split(".")[0] for module in modules if not _SERIAL.match(module)]
        found = [_MODULES.get(one, "") for one in libraries] + [_NAMES.get(one, "") for one in names]
        if any(found):
            return next(filter(None, found))
    return ""
