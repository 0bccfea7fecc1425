"""Checkpoints for a training loop of your own, or a script written for Horovod: :class:`Checkpoint`.

::

    checkpoint = rueda.Checkpoint("checkpoints", model=model, optimizer=optimizer)
    for epoch in checkpoint.epochs(10):  # resumes where the last checkpoint was written, and writes one per epoch
        ...

A loop that counts updates calls :meth:`Checkpoint.resume` and :meth:`Checkpoint.save` itself. With
``asynchronous=True`` the loop goes on while a thread writes a copy (:mod:`rueda.train.copies`). The files are those of
``rueda train`` (:mod:`rueda.train.checkpoint`): written atomically, verified when they are read, and never with weights
that are not finite. Rank 0 writes them, and reads them for all workers, so that only its disk needs to hold them. A
resumed training may have another number of workers: models and optimizers are the same on all of them, and a
:class:`rueda.Loader` continues at the next unseen example.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from rueda.errors import CheckpointError, NonFiniteError
from rueda.files.lock import held
from rueda.files.remote import AnyPath, any_path
from rueda.train.checkpoint import find_checkpoint, save_checkpoint
from rueda.train.copies import StateCopies
from rueda.train.divergence import ADVICE, nonfinite_in_state
from rueda.train.resume import read_for_all
from rueda.train.writer import CheckpointWriter
from rueda.world import current

_OWN = ("format", "place")


class Stateful(Protocol):
    """What a checkpoint can hold: a model, an optimizer, a scheduler, a loader, a gradient scaler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: Any) -> Any:
        """Restore the state."""


class Checkpoint:
    """Saves the parts of a training into a folder, and restores them on all workers.

    >>> from tempfile import mkdtemp
    >>> folder, model = mkdtemp(), nn.Linear(1, 1)
    >>> _ = Checkpoint(folder, model=model).save(7).name  # 'step-00000007.<checksum>.pt'
    >>> again = nn.Linear(1, 1)
    >>> Checkpoint(folder, model=again).resume(), bool(again.weight == model.weight)
    (7, True)

    Args:
        folder: where the files are: a path, which rank 0 creates and one process may write at a time, or a URL on
            object storage (``s3://bucket/folder``, :mod:`rueda.files.remote`), where nothing prevents a second writer.
        keep: how many of the newest checkpoints are kept.
        asynchronous: whether :meth:`save` copies the state in memory and returns, while a thread writes the copy; a
            second copy of the state then stays in memory.
        parts: what to save, by name: objects with ``state_dict`` and ``load_state_dict``. A model that
            :meth:`rueda.World.wrap` or DistributedDataParallel has wrapped is saved without the wrapper.
    """

    def __init__(self, folder: AnyPath | str, *, keep: int = 2, asynchronous: bool = False, **parts: Stateful) -> None:
        self.folder, self._keep = any_path(folder), keep
        wrong = [name for name, part in parts.items() if name in _OWN or not hasattr(part, "load_state_dict")]
        if not parts or wrong:
            expected = "parts with state_dict and load_state_dict, such as model=model"
            raise CheckpointError("Checkpoint", expected=expected, got=wrong or "no part", do="pass them by name")
        if keep < 1:
            raise CheckpointError("keep", expected="1 or more", got=keep, do="correct it")
        world = current()
        self._parts = {
            name: world.unwrap(part) if isinstance(part, nn.Module) else part for name, part in parts.items()
        }
        self._intact: set[AnyPath] = set()
        self._copies = StateCopies(world.device, 1) if asynchronous else None
        self._writer = CheckpointWriter()
        self._lock = ExitStack()
        self._locked = False

    def save(self, step: int, *, best: bool = False) -> AnyPath | None:
        """Write a checkpoint on rank 0, whose path is returned; other ranks return None at once.

        It is no collective: all ranks may call it, or rank 0 alone. With ``asynchronous`` it first waits until the
        checkpoint before is written, and returns None once the state is copied; :meth:`wait` returns the path.

        Args:
            step: how far the training is, in any unit that only grows, such as epochs or updates.
            best: also keep this checkpoint as the best one.

        Raises:
            NonFiniteError: a model or an optimizer holds NaN or infinity; nothing is written.
            RunError: the disk is full, or another process writes the folder; with ``asynchronous``, the checkpoint
                before could not be written.
        """
        if not current().is_main:
            return None
        self._hold_lock()
        self._writer.wait()
        found = nonfinite_in_state(*self._parts.values())
        if found is not None:
            whole = find_checkpoint(self.folder, "last")
            raise NonFiniteError(
                f"nan or inf in {found}, which is not saved: {ADVICE}; "
                + (f"{whole} is whole and finite" if whole is not None else "no checkpoint was written before")
            )
        state = {name: part.state_dict() for name, part in self._parts.items()}
        contents = {"format": 1, "place": {"step": step, "optimizers": self._optimizers()}, **state}
        options: dict[str, Any] = {"step": step, "keep": self._keep, "best": best, "known": self._intact}
        if self._copies is None:
            return save_checkpoint(self.folder, contents, **options)
        copied = self._copies.take(step, contents).contents
        self._writer.begin(lambda: save_checkpoint(self.folder, copied, **options))
        return None

    def wait(self) -> AnyPath | None:
        """Wait until the checkpoint that ``asynchronous`` has begun is on disk, and return its path; None: none was.

        A process that ends waits for it by itself, but tells nobody of an error.

        Raises:
            RunError: it could not be written.
        """
        return self._writer.wait()

    def epochs(self, total: int) -> Iterator[int]:
        """Iterate over the epochs that are left of ``total``, and write a checkpoint at the end of each.

        Every rank must call it. Leaving the loop early, by ``break`` or an error, does not save that epoch.
        """
        try:
            for epoch in range(self.resume(), total):
                yield epoch
                self.save(epoch + 1)
        finally:
            self.wait()

    def resume(self, wanted: str | int = "last") -> int:
        """Restore all parts from the newest intact checkpoint; every rank must call it.

        An optimizer's learning rate and other options are restored as well: to continue at another rate, set it in
        ``optimizer.param_groups`` after this call.

        Args:
            wanted: ``last``, ``best``, or the step of a checkpoint.

        Returns:
            The step that was passed to :meth:`save`; 0 if there is no checkpoint yet.

        Raises:
            CheckpointError: all checkpoints are damaged, or they hold other parts or those of another optimizer.
        """
        world = current()
        world.on_main(self._prepare)
        found = read_for_all(world, self.folder, str(wanted))
        if found is None:
            return 0
        file, contents = found
        if contents.keys() - _OWN != self._parts.keys():
            there, asked = (", ".join(sorted(names)) for names in (contents.keys() - _OWN, self._parts.keys()))
            raise CheckpointError(f"{file}: expected {asked}, got {there}; pass the parts that were saved")
        for name, kind in contents["place"].get("optimizers", {}).items():  # older files do not name them
            if (now := self._optimizers().get(name)) != kind:
                do = "pass the same kind, or choose another folder"
                raise CheckpointError(
                    f"{file}, {name}", expected=f"the optimizer that was saved, {kind}", got=now, do=do
                )
        for name, part in self._parts.items():
            try:
                part.load_state_dict(contents[name])
            except (KeyError, RuntimeError, ValueError, TypeError) as error:
                reason = " ".join(line.strip() for line in str(error).splitlines()[:2])  # torch's first line is a title
                raise CheckpointError(f"{file} does not fit {name} ({reason})") from None
        return int(contents["place"]["step"])

    def _optimizers(self) -> dict[str, str]:
        """Return the kinds of the optimizers, whose states cannot be exchanged, by the names of the parts."""
        return {name: type(part).__name__ for name, part in self._parts.items() if isinstance(part, Optimizer)}

    def _prepare(self) -> None:
        """Make sure that all that was saved is on disk, and that no other process writes there."""
        self._writer.wait()
        self._hold_lock()

    def _hold_lock(self) -> None:
        """Take the lock of the folder, which is free again when this object or its process ends."""
        if not self._locked and isinstance(self.folder, Path):
            self._lock.enter_context(held(self.folder))
            self._locked = True
