"""Workers that are no longer equal, and weights that are no longer finite: repair them, go back, or end.

Both ways back lead to the last checkpoint: at a lower rate after a divergence (:mod:`rueda.train.divergence`), with
nothing changed if the workers differ and nobody knows which of them is right (:mod:`rueda.train.comparison`).
"""

from __future__ import annotations

from rueda.errors import WorldError
from rueda.train.comparison import Comparison, repair
from rueda.train.divergence import ADVICE, MOST_ROLL_BACKS, ROLL_BACK_FACTOR, nonfinite_in_state
from rueda.train.recording.display import Display
from rueda.train.recording.run_writer import RunWriter
from rueda.train.saving import Saver
from rueda.train.state import restore
from rueda.train.training import Training


class RolledBack(Exception):
    """Raised on all workers after the training has gone back to its last checkpoint in the middle of an epoch."""


class Recovery:
    """Compares the workers and tests the weights of a training, and brings it back to a state that is sound.

    Args:
        training: the training.
        comparison: compares the workers.
        saver: has the checkpoints of the run; None if there is no run folder, so that there is no way back.
        display: tells the user what happened.
        writer: writes it.
    """

    def __init__(
        self, training: Training, comparison: Comparison, saver: Saver | None, display: Display, writer: RunWriter
    ) -> None:
        self._training, self._comparison, self._saver = training, comparison, saver
        self._display, self._writer = display, writer
        self.divergence: str | None = None
        """what is no longer finite"""

    def compare(self) -> None:
        """Compare the workers, and repair or go back if they are no longer equal; every worker must call it.

        Raises:
            RolledBack: the training has gone back to its last checkpoint.
            WorldError: there is none, or the workers differ again and again.
        """
        drift, incidents = self._comparison.compare()
        for incident in incidents:
            self._writer.report(incident)
        if drift is None:
            return
        if drift.source is None:
            if not self._go_back():
                raise WorldError(f"{drift.text}; there is no checkpoint to go back to: train with a run folder")
            back = f"which is right is unknown: back to update {self._training.state.step:,}"
            self._writer.report(self._comparison.record(drift, back))
            raise RolledBack
        repair(self._training, drift)
        whose = f"repaired with the parameters and the optimizer state of rank {drift.source}"
        self._writer.report(self._comparison.record(drift, whose))

    def weights_are_finite(self) -> bool:
        """Test all weights on rank 0 and note a divergence on all workers if they are not finite."""
        training = self._training
        if self.divergence is None:
            found = training.world.on_main(nonfinite_in_state, training.model, training.optimizer)
            if found is not None:
                self.note_nonfinite(found)
        return self.divergence is None

    def note_nonfinite(self, tensors: str) -> None:
        """Note that tensors of the state are not finite."""
        self.divergence = f"nan or inf in {tensors}: {ADVICE}"

    def roll_back(self) -> bool:
        """After a divergence go back to the last checkpoint, at a lower rate, if the recipe says so.

        Every worker must call it.

        Returns:
            Whether the training continues; False if it is to end, since it has gone back too often already.
        """
        training, before = self._training, self._training.state
        number = before.num_roll_backs + 1
        if self._saver is None or training.recipe.on_divergence != "roll-back" or number > MOST_ROLL_BACKS:
            return False
        has_gone_back = self._go_back()
        assert has_gone_back, "a run that may roll back begins with a checkpoint"
        state = training.state
        state.num_roll_backs, state.rate_factor = number, before.rate_factor * ROLL_BACK_FACTOR
        self._display.progress.say(
            f"diverged after update {before.step:,}: back to update {state.step:,}, at {state.rate_factor:g} times the "
            f"rate (roll-back {number} of at most {MOST_ROLL_BACKS})"
        )
        self.divergence = None
        self._comparison.restart()
        return True

    def _go_back(self) -> bool:
        """Restore the last checkpoint and remove the rows behind it; return False without one; all must call it."""
        found = None if self._saver is None else self._saver.last()
        if found is None:
            return False
        restore(self._training, *found)
        self._writer.forget_after(self._training.state.step, self._training.state.epoch)
        self._display.forget_sums()
        return True
