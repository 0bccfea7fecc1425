"""Compares the workers every ``compare_every`` updates and before each checkpoint: their parameters and their speed.

One small all-gather tells both: the checksum of the parameters (:mod:`rueda.train.drift`) and the seconds in which each
worker computes an update (:mod:`rueda.train.stragglers`). Workers that are no longer equal are repaired from the
majority; without one the training goes back to its last checkpoint, which was compared before it was written.
"""

from __future__ import annotations

import io
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rueda.errors import WorldError
from rueda.records.run import Incident
from rueda.train.drift import Drift, checksums, combined, compared_parameters, describe_drift
from rueda.train.stragglers import LEAST_STEPS, ComputeClock, Straggler, StragglerWatch

if TYPE_CHECKING:
    from rueda.train.training import Training

MOST_IN_A_ROW = 3
"""how often workers may differ before the training has come further; more are no accident, and end the training"""


class Found(NamedTuple):
    """The outcome of a comparison, the same on all workers."""

    drift: Drift | None
    """workers that are no longer equal"""
    incidents: list[Incident]
    """stragglers"""


class Comparison:
    """Compares the workers of a training; it does nothing on a single one, or if ``compare_every`` is 0.

    Args:
        training: the training.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        comparable = training.world.size > 1 and not training.mesh.divides_model  # parts are not the same
        self._every = training.recipe.compare_every if comparable else 0
        measures = self._every > 0 and training.world.device.type == "cpu"
        self.clock = ComputeClock(training.model) if measures else None
        """the timer of the steps"""
        self._watch = StragglerWatch()
        self._hosts: list[str] = []
        self._num_in_a_row = 0
        self._found_at = -1
        """the last update after which workers differed; a training that has gone back passes earlier ones again"""
        self.restart()

    def restart(self) -> None:
        """Take the workers as equal, since the training begins or has gone back to a checkpoint."""
        self._compared_at = self._equal_at = self._training.state.step
        if self.clock is not None:
            self.clock.take()

    @property
    def is_on(self) -> bool:
        """Whether there is anything to compare."""
        return self._every > 0

    def due(self) -> bool:
        """Whether the workers are to be compared after this update."""
        return self._every > 0 and self._training.state.step % self._every == 0

    def compare(self) -> Found:
        """Compare the workers, unless that was done after this update; every worker must call it.

        Raises:
            WorldError: they differ again and again.
        """
        world, step = self._training.world, self._training.state.step
        if self._every == 0 or self._compared_at == step:
            return Found(None, [])
        self._compared_at = step
        exchange = self._training.updater.exchange
        parameters = compared_parameters(self._training.model) if exchange is None else exchange.anchors
        sums = checksums(list(parameters.values()), world.device)
        num_steps, seconds = (0, 0.0) if self.clock is None else self.clock.take(LEAST_STEPS)
        nanoseconds = torch.full((1,), round(seconds * 1e9), dtype=torch.int64, device=world.device)
        told = [one.tolist() for one in world.all_gather(torch.cat([combined(sums).reshape(1), nanoseconds]))]
        stragglers = self._watch.take(step, num_steps, [of_rank[1] / 1e9 for of_rank in told])
        incidents = [self._incident(one) for one in stragglers]
        if len({of_rank[0] for of_rank in told}) == 1:
            self._equal_at = step
            if step > self._found_at:
                self._num_in_a_row = 0
            return Found(None, incidents)
        drift = describe_drift(world, parameters, sums)
        self._num_in_a_row += 1
        self._found_at = max(self._found_at, step)
        if self._num_in_a_row > MOST_IN_A_ROW:
            raise WorldError(
                f"the workers differ for the {self._num_in_a_row}th time in a row: {drift.text}; find the cause, or "
                "turn the comparison off (compare_every = 0) and resume"
            )
        return Found(drift, incidents)

    def record(self, drift: Drift, outcome: str) -> Incident:
        """Return the record of workers that differed, once they are equal again.

        Args:
            drift: what was found.
            outcome: what was done.
        """
        state = self._training.state
        text = f"update {self._compared_at:,}: {drift.text}; {outcome}"
        incident = Incident(
            what="silent-error", step=state.step, epoch=state.epoch, seconds=state.seconds, ranks=drift.ranks,
            hosts=drift.hosts, since_step=self._equal_at, parameters=drift.names, text=text,
        )  # fmt: skip
        self.restart()
        return incident

    def close(self) -> None:
        """Stop timing."""
        if self.clock is not None:
            self.clock.close()

    def _incident(self, found: Straggler) -> Incident:
        """Return the record of a straggler; every worker must call it."""
        world, state = self._training.world, self._training.state
        if not self._hosts:
            self._hosts = world.all_gather_object(socket.gethostname())
        host, by = self._hosts[found.rank], f"{found.factor:.2f} times"
        since = f"since update {found.since_step:,}"
        if found.slow:
            others = "the other worker" if world.size == 2 else "the median of the others"
            text = (
                f"update {state.step:,}: rank {found.rank} ({host}) is a straggler {since}: it computes {by} as long "
                f"as {others}, {1000 * found.excess_seconds:.1f} ms more per update, for which all wait"
            )
        else:
            text = f"update {state.step:,}: rank {found.rank} ({host}) keeps up with the others again {since}"
        return Incident(
            what="straggler" if found.slow else "recovered", step=state.step, epoch=state.epoch, seconds=state.seconds,
            ranks=(found.rank,), hosts=(host,), since_step=found.since_step, factor=found.factor,
            excess_seconds=found.excess_seconds, text=text,
        )  # fmt: skip


def repair(training: Training, drift: Drift) -> None:
    """Give the wrong ranks the parameters, the average and the optimizer state of the majority.

    A wrong number in the state of an optimizer shows only in the parameters that it makes, so both are replaced. What a
    rank has of its own, the running statistics and random states, it keeps. Every worker must call it.
    """
    world, source = training.world, drift.source
    assert source is not None, "there is a majority"
    content = b""
    if world.rank == source:
        buffer = io.BytesIO()
        torch.save(_shared_state(training), buffer)
        content = buffer.getvalue()
    content = world.broadcast_object(content, source)
    if world.rank not in drift.ranks:
        return
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    with torch.no_grad():
        for name, parameter in training.model.named_parameters():
            parameter.copy_(state["parameters"][name])
    if training.average is not None:
        training.average.load_state_dict(state["average"])
    if training.updater.exchange is not None:
        training.updater.exchange.load_state_dict(state["exchange"])
    for updater, of_updater in zip(training.updaters, state["updaters"], strict=True):
        updater.optimizer.load_state_dict(of_updater["optimizer"])
        updater.scaler.load_state_dict(of_updater["scaler"])


def _shared_state(training: Training) -> dict[str, Any]:
    """Return what all workers must have in common."""
    return {
        "parameters": {name: one.detach() for name, one in training.model.named_parameters()},
        "average": None if training.average is None else training.average.state_dict(),
        "exchange": None if training.updater.exchange is None else training.updater.exchange.state_dict(),
        "updaters": [
            {"optimizer": one.optimizer.state_dict(), "scaler": one.scaler.state_dict()} for one in training.updaters
        ],
    }
