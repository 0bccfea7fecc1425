"""Everything that is replaced in torch while a serial script runs on many workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rueda.check.patches import Patches
from rueda.check.running import run_script
from rueda.check.scale.backward import SharedBackward
from rueda.check.scale.batch_norm import BatchNorms
from rueda.check.scale.batches import BatchTracker
from rueda.check.scale.draws import SharedDraws
from rueda.check.scale.evaluation import SharedEvaluation
from rueda.check.scale.files import PrivateFiles
from rueda.check.scale.generator import GeneratorWatch
from rueda.check.scale.ledger import LossLedger
from rueda.check.scale.loader import SharedLoaders
from rueda.check.scale.notes import Notes
from rueda.check.scale.options import ScaleOptions
from rueda.check.scale.parameters import ParameterRegistry
from rueda.check.scale.steps import StepChecks
from rueda.check.scale.verification import Verification
from rueda.check.scale.weak import WeakScaling
from rueda.errors import ScaleError
from rueda.world import World


class Scaling:
    """A serial script on the workers of a world.

    Args:
        world: the workers; one worker for the reference.
        options: how it is scaled.
        folders: the folders whose files only rank 0 writes.
        verify: makes the comparison with the script on one worker; by default there is none.
    """

    def __init__(
        self,
        world: World,
        options: ScaleOptions,
        *,
        folders: Sequence[Path] = (),
        verify: Callable[[Notes], Verification] = lambda notes: Verification(),
    ) -> None:
        self.world, self.options = world, options
        self.notes = Notes(speaks=world.is_main and not options.is_reference)
        self.tracker = BatchTracker(size=world.size, loss=options.loss, notes=self.notes)
        self._parameters = ParameterRegistry()
        synchronised = options.batch_norm == "synchronised"
        self._batch_norms = BatchNorms(self.tracker, self.notes, synchronised=synchronised)
        self._generator = GeneratorWatch(world, self.notes)
        self._ledger = LossLedger(options.verify, self._parameters.num_optimizers)
        self._autocast = False
        self._draws = SharedDraws(self.tracker, self._generator)
        self.evaluation = SharedEvaluation(world, self.tracker, self.notes)
        self._backward = SharedBackward(
            world, self.tracker, self._parameters, self._batch_norms, self._generator, self._ledger, self.notes
        )
        self.verification = verify(self.notes)
        self.steps = StepChecks(
            world, self.tracker, self._parameters, self._backward, self.verification, self._ledger, self._inexact,
            self.notes,
        )  # fmt: skip
        writes = world.is_main and not options.is_reference
        self.files = None if writes else PrivateFiles([*folders, Path.cwd()])

    def _inexact(self) -> str:
        """Return why the gradients may differ from the serial script's; nothing if they must not."""
        if self._batch_norms.differ:
            return "batch norm uses the statistics of shares"
        if self.options.load == "share" and self.tracker.draws_while_loading:
            return "the data set draws random numbers, of each worker's own with --load share"
        if self._generator.is_own:
            return "random numbers are drawn within an operation"
        return "autocast computes in half precision" if self._autocast else ""

    def _noting_autocast(self, original: Any) -> Any:
        def __enter__(region: Any) -> Any:
            self._autocast = self._autocast or region._enabled
            return original(region)

        return __enter__

    @contextmanager
    def active(self) -> Iterator[Scaling]:
        """Replace everything, and restore it at the end."""
        patches = Patches()
        options, size = self.options, self.world.size
        loaders = SharedLoaders(
            self.world, self.tracker, self._generator, self.notes, options.load, size if options.weak else 1
        )
        try:
            if options.weak:
                WeakScaling(size, self.tracker, self.notes, options.scaling, options.warmup_epochs).install(patches)
            for part in (self._parameters, self._batch_norms, loaders, self._draws, self._backward, self.steps):
                part.install(patches)
            if options.share_evaluation:
                self.evaluation.install(patches)
            self.tracker.follow_modes(patches)
            patches.replace(torch.autocast, "__enter__", self._noting_autocast)
            patches.replace(dist, "init_process_group", self._refused)
            if self.files is not None:
                self.files.install(patches)
            yield self
        finally:
            patches.undo()
            self.verification.close()

    def _refused(self, original: object) -> Callable[..., None]:
        def init_process_group(*args: object, **options: object) -> None:
            self.notes.refuse(
                "the script connects its workers itself (init_process_group): it is not serial; start it with "
                "`rueda run -np N train.py`"
            )

        return init_process_group

    def run(self, command: Sequence[str]) -> None:
        """Run the script in this process, as ``python train.py --lr 0.1`` would, and say how it was scaled.

        Args:
            command: the script and its arguments.
        """
        kept = sys.argv, sys.path[:], sys.modules["__main__"]
        try:
            with self.active():
                try:
                    run_script(command)
                except SystemExit as left:
                    if left.code not in (None, 0):
                        raise
                except ScaleError:
                    raise
                except Exception:
                    self._explain()
                    raise
                self.notes.check()
                self._conclude()
        finally:
            sys.argv, sys.path[:], sys.modules["__main__"] = kept

    def _explain(self) -> None:
        """Say that a script which fails on its first share may rely on the size of its batch."""
        share = self.tracker.share
        if share is not None and self.tracker.num_shared_backward == 0:
            self.notes.say(
                f"the script has failed on its first share, {share.rows} of {share.whole} examples, after it worked on "
                "entire batches: it seems to rely on the size of its batch; use the size of what the loader gives"
            )

    def _conclude(self) -> None:
        self._backward.check_end()
        self.steps.check_at_end()
        held = sorted({file for part in self.world.all_gather_object(self._held_back()) for file in part})
        steps, tracker = self.steps, self.tracker
        if self.world.size == 1:
            return
        self.notes.say(
            f"{tracker.num_shared_backward:,} of {tracker.num_backward:,} backward passes were shared among "
            f"{self.world.size} workers ({steps.num_steps:,} optimizer steps)"
        )
        if self.options.share_evaluation:
            shared, calls = self.evaluation.num_shared, self.evaluation.num_calls
            self.notes.say(f"{shared:,} of {calls:,} forward passes of evaluations were shared")
        if tracker.num_shared_backward and self.options.verify and not self._ledger.num_compared:
            self.notes.say("not verified: no optimizer of torch made a step with shared gradients, none was compared")
        if held:
            named = ", ".join(held[:4]) + (f" and {len(held) - 4} more" if len(held) > 4 else "")
            self.notes.say(f"rank 0 alone wrote files; those of the others were held back: {named}")

    def _held_back(self) -> list[str]:
        return [] if self.files is None else [os.path.relpath(file) for file in self.files.held_back]
