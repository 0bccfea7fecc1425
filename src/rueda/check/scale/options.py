"""The options of ``rueda scale``, which reach the workers in an environment variable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rueda.errors import ScaleError

VARIABLE = "RUEDA_SCALE"
_CHOICES = {"loss": ("mean", "sum"), "load": ("auto", "whole", "share"), "batch_norm": ("worker", "synchronised")}


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """How a serial script is scaled.

    Args:
        loss: whether the script's loss is a ``mean`` or a ``sum`` over the examples of its batch.
        verify: how many of the first shared updates, of each kind of loss and optimizer, are compared with those of
            the script on one worker.
        load: the examples that a worker loads of each batch: its ``share``, the ``whole`` batch, or by ``auto`` its
            share unless the data set draws random numbers; then the whole, so that all draws are the serial script's.
        batch_norm: the statistics of batch norm: those of each ``worker``'s share, or ``synchronised``.
        share_evaluation: forward passes of an evaluation are shared out, and their outputs gathered
            (:mod:`.evaluation`).
        weak: each worker keeps the script's batch, so that the global batch is larger (:mod:`.weak`).
        scaling: with ``weak``: the scaling rule of the learning rate.
        warmup_epochs: with ``weak``: the number of epochs in which the learning rate rises to its scaled value.
        answers: for the reference process: the file descriptor that its gradients are announced on.
        commands: for the reference process: the file descriptor that it gets its commands from.

    >>> ScaleOptions.of({"RUEDA_SCALE": ScaleOptions(loss="sum").as_text()}).loss
    'sum'
    """

    loss: str = "mean"
    verify: int = 2
    load: str = "auto"
    batch_norm: str = "worker"
    share_evaluation: bool = False
    weak: bool = False
    scaling: str = "linear"
    warmup_epochs: float = 5.0
    answers: int = -1
    commands: int = -1

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                option = f"--{name.replace('_', '-')}"
                raise ScaleError(option, expected=" or ".join(choices), got=getattr(self, name), do="choose one")
        if self.verify < 0:
            raise ScaleError("--verify", expected="a number of updates, 0 or more", got=self.verify, do="correct it")

    @property
    def is_reference(self) -> bool:
        """Whether this process is the script on one worker, with which the gradients are compared."""
        return self.answers >= 0

    def as_text(self) -> str:
        """Return the options as the value of the variable."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ScaleOptions:
        """Read the options from the environment; without the variable they are the default ones."""
        return cls(**json.loads(environ.get(VARIABLE, "{}")))
