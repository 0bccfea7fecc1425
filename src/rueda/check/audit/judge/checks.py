"""The names of all checks."""

from __future__ import annotations

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
