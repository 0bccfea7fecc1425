"""What has happened so far on this worker: numbers that several observers share, and by which progress is seen."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass
class Counters:
    """Counts of events."""

    steps: int = 0
    """optimizer steps"""
    optimizers: int = 0
    """optimizers that were made"""
    backwards: int = 0
    batches: int = 0
    collectives: int = 0
    """collectives that move values: not barriers, not broadcasts"""
    all_reduces: int = 0
    other_collectives: int = 0
    printed: int = 0
    """writes of numbers to standard output"""
    rows: int = 0
    """examples of the batch that was read last"""
    loading: float = 0.0
    """seconds in which the loop waited for a batch"""
    loader: str = ""
    """where the loader was made whose epoch began last"""
    loss_scale: float = 1.0
    """the factor of a GradScaler, by which losses and local gradients are larger"""
    names: MutableMapping[Tensor, str] = field(default_factory=WeakTensorKeyDictionary)
    """names of parameters; a later parameter at the address of one that is gone does not get its name"""

    def snapshot(self) -> dict[str, int]:
        """Return the counts of now."""
        return {
            "steps": self.steps, "backwards": self.backwards, "collectives": self.collectives,
            "all_reduces": self.all_reduces, "printed": self.printed,
        }  # fmt: skip

    def since(self, start: dict[str, int]) -> dict[str, int]:
        """Return what has happened since a snapshot."""
        return {name: value - start[name] for name, value in self.snapshot().items()}

    @property
    def progress(self) -> int:
        """A number that changes as long as the script advances."""
        return self.steps + self.backwards + self.batches + self.collectives + self.other_collectives + self.printed
