"""What this process has trained of the current epoch; a resumed process trains only the rest of one."""

from __future__ import annotations

from rueda.train.training import Training


class EpochProgress:
    """Counts from the start of the epoch in this process, from which its speed is computed.

    Args:
        training: the training.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self.begin()

    def begin(self) -> None:
        """Count from here on."""
        state, loader = self._training.state, self._training.loader
        self._seconds, self._examples, self._step = state.seconds, state.examples, state.step
        self._num_done_before = len(loader) - loader.num_batches_left()

    @property
    def seconds(self) -> float:
        """Training time in this process."""
        return self._training.state.seconds - self._seconds

    @property
    def num_examples(self) -> int:
        """Examples of all workers."""
        return self._training.state.examples - self._examples

    @property
    def num_steps(self) -> int:
        """Updates."""
        return self._training.state.step - self._step

    @property
    def seconds_per_step(self) -> float:
        """The mean time of an update."""
        return self.seconds / max(1, self.num_steps)

    def position(self) -> tuple[int, int]:
        """Return the number of updates that are made in the whole epoch, and that of all its updates."""
        done = self._num_done_before + self.num_steps
        return done, done + self._training.loader.num_batches_left()
