"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass

PASSED, FAILED, WARNING, ADVICE, NOT_SEEN = "passed", "failed", "warning", "advice", "not seen"


@dataclass(frozen=True)
class Verdict:
    """The result of one check.

    Args:
        check: the name of the check, such as ``same-batches``.
        status: ``passed``, ``failed``, ``warning``, ``advice`` or ``not seen``.
        what: what was found, in a sentence; why it could not be seen.
        where: the places in the script, such as ``train.py:34``.
        cure: what to do, in a sentence.
    """

    check: str
    status: str
    what: str = ""
    where: tuple[str, ...] = ()
    cure: str = ""


CHECKS: dict[str, str] = {
    "same-batches": "each rank trains on batches of its own",
    "overlapping-data": "the parts of the ranks do not overlap",
    "skipped-data": "together they read all training data",
    "same-order": "each epoch has another order",
    "repeated-stream": "a stream is divided among the ranks",
    "different-batch-counts": "all ranks have equally many batches",
    "different-collectives": "no rank waits for one that never comes",
    "different-start": "all ranks start with equal parameters",
    "drift": "parameters stay equal",
    "gradients-not-averaged": "gradients are exchanged",
    "gradients-summed": "gradients are averaged, not summed",
    "gradients-averaged-twice": "gradients are divided once",
    "uneven-mean": "the mean counts every example once",
    "unscaled-rate": "the rate fits the global batch",
    "no-warmup": "a scaled rate is warmed up",
    "schedule-per-worker": "the schedule is stepped once per update",
    "few-examples-per-statistic": "batch norm has enough examples",
    "same-randomness": "dropout and augmentation differ between ranks",
    "shard-as-whole": "an evaluation covers all its data",
    "padded-evaluation": "an evaluation counts every example once",
    "same-file": "one rank writes each file",
    "torn-checkpoint": "checkpoints are replaced as a whole",
    "every-rank-downloads": "one rank downloads",
    "every-rank-tracks": "one rank tracks the experiment",
    "too-many-threads": "the threads have enough cores",
    "one-gpu": "each rank has a GPU of its own",
    "wrong-backend": "the backend fits the device",
    "slow-loader": "the loader keeps up with the GPU",
}
"""every check by its name, with what holds if it passes; the order is that of the table"""
