"""The answers of lab 2, data parallelism."""

from __future__ import annotations

from rueda.labs.answering import Answer, Check

CROSSING_WIDTH = 256
PIPELINE = (8, 4)  # micro-batches, stages
SAMPLES = (1000, 3, 32)  # examples, workers, local batch


def _crossing() -> float:
    """Return the batch at which a pipeline sends as many bytes as data parallelism."""
    from rueda.labs.lab_2.parallelism import case
    from rueda.measure.together import gradient_bytes

    one = case(1, CROSSING_WIDTH)
    return gradient_bytes(one.network) / one.inputs[0].nbytes


def _idle() -> float:
    from rueda.labs.lab_2.parallelism import bubble

    return 100 * bubble(*PIPELINE)


def _megabytes() -> float:
    from rueda.labs.lab_2.iteration import network
    from rueda.measure.together import gradient_bytes

    return gradient_bytes(network()) / 1e6


def _batches() -> float:
    from rueda.labs.lab_2.sharing import sampled

    examples, workers, batch = SAMPLES
    return float(-(-len(sampled(examples, workers, 0)[0]) // batch))


ANSWERS = {
    "2.doubled-batch": Answer(
        right="those of pipeline and tensor parallelism",
        why="Activations belong to examples, so twice the examples are twice the bytes. There is one gradient for each "
        "weight, no matter how many examples it was computed from.",
        hints=[
            "Move the batch, and see which lines are level.",
            "Is there one gradient for each example, or one for each weight? And activations?",
        ],
    ),
    "2.crossing": Answer(
        right=_crossing, tolerance=10.0,
        why="Data parallelism sends 2 w² numbers, the pipeline B w each way: equal at B = 2 w = 512.",
        hints=[
            "Set the width to 256 and look where the blue and the orange line meet.",
            "Both weight matrices have 256 × 256 numbers. An example has 256 activations. How many examples have as "
            "many activations as the matrices have numbers?",
        ],
    ),
    "2.bubble": Answer(
        right=_idle, tolerance=0.7,
        why="(p − 1) / (m + p − 1) = 3 / 11 = 27 %.",
        hints=[
            "The last of p stages waits for p − 1 micro-batches before its first one; then it has m of its own.",
            "3 of 3 + 8 time slots are empty.",
        ],
    ),
    "2.average-where": Answer(
        right="after the backward pass (12), before the update (13)",
        why="Only then are all gradients known and no weight has changed. DDP and Horovod begin as soon as the first "
        "gradients are there, during steps 10 to 12, and end in the same place.",
        hints=[
            "Which step produces what is averaged, and which one uses it?",
            "Step 12 produces the last gradient. Step 14 changes the weights.",
        ],
    ),
    "2.gradient-megabytes": Answer(
        right=_megabytes, tolerance=0.05,
        why="784 × 512 + 512 × 512 + 512 × 10 weights and 1,034 biases are 669,706 numbers of 4 bytes.",
        hints=[
            "Count the weights of the three layers; each gradient is a number of 4 bytes.",
            "784 × 512, 512 × 512 and 512 × 10 weights, and a bias for each neuron. Times 4 bytes, divided by "
            "a million.",
        ],
    ),
    "2.slow-worker": Answer(
        right="the other worker, for 20 ms in each iteration",
        why="An average is complete when the last worker has contributed. The slowest worker sets the pace of all.",
        hints=[
            "Move to the step of the average on two workers: when do both bars end?",
            "The mean needs both gradients. What can the fast worker do before the slow one has come?",
        ],
    ),
    "2.serial-twice": Answer(
        right="two separate models, each trained on all images",
        why="Nothing connects the processes: both read all data, each begins with weights of its own, and both "
        "write the same file. Twice the work, and one result overwrites the other.",
        hints=[
            "Compare the norms of the weights that the two ranks print.",
            "Does any line of the script exchange anything, or divide the images?",
        ],
    ),
    "2.who-synchronises": Answer(
        right="DistributedDataParallel(model)",
        why="When it wraps a model, DDP broadcasts the parameters and buffers of rank 0. What it does not "
        "know, such as the state of an optimizer that was loaded on rank 0 only, remains your task.",
        hints=[
            "Step 4 of DDP changes one argument. Of which call?",
            "`init_sync=False` would switch it off. To whom is it given?",
        ],
    ),
    "2.batches": Answer(
        right=_batches, tolerance=0.25,
        why="The sampler gives each worker ⌈1,000 / 3⌉ = 334 examples, and ⌈334 / 32⌉ = 11.",
        hints=[
            "First the examples of a worker: the sampler fills up until the shares are equal.",
            "334 examples in batches of 32; the last batch is smaller, and counts.",
        ],
    ),
    "2.uneven": Answer(
        right="it begins its second epoch; its gradients meet those of rank 0's first",
        why="An all-reduce does not know about epochs: it averages whatever comes next. When rank 1 has made its last "
        "update it leaves, and rank 0 waits in an all-reduce for a worker that is gone. On GPUs that looks like a "
        "training that hangs.",
        hints=[
            "Rank 1 has no way to know that rank 0 is not done. What does its loop do when the loader is empty?",
            "The inner loop ends, the outer loop goes on. Its next backward pass calls an all-reduce. Who answers?",
        ],
    ),
    "2.horovod-synchronise": Answer(
        right="give all workers the state of rank 0",
        why="hvd.broadcast_parameters and hvd.broadcast_optimizer_state are calls of your own; the wrapped "
        "optimizer only averages gradients. DDP broadcasts the parameters when it wraps the model.",
        hints=[
            "Compare steps 3 and 4 of both scripts.",
            "Which step of Horovod adds two lines where DDP only has an argument?",
        ],
    ),
    "2.still-equal": Answer(
        right="partition the data",
        why="The gradients are still averaged from an equal start, so the weights stay equal, and the accuracy "
        "looks right. The second worker adds almost nothing, and nothing that is printed says so.",
        hints=[
            "Try the three on the screen above, and compare the norms of the weights of rank 0 and rank 1.",
            "Weights stay equal if they start equal and get equal gradients. Which of the three touches neither?",
        ],
    ),
}  # fmt: skip
"""the answers by key"""


def _share(num_examples: int, rank: int, size: int) -> list[int]:
    from rueda.data.partition import num_batches, order, positions_of

    positions = positions_of(0, num_batches(num_examples, size), rank, size)
    found: list[int] = order(num_examples, seed=0, epoch=0, method="sequential")[positions].tolist()
    return found


def _sent(parameters: int, workers: int) -> float:
    """Return the bytes that each worker sends: the seconds of a ring whose links carry one byte a second."""
    from rueda.plan.cluster import Link
    from rueda.plan.collectives import ring

    return ring(4 * parameters, workers, Link(latency=0, bandwidth=1))


CHECKS = {
    "2.share": Check(
        function="share", expected=_share,
        cases=[(10, 0, 2), (10, 1, 2), (11, 0, 2), (11, 1, 2), (100, 3, 8), (7, 2, 3)],
        why="Every worker has the same number of examples, so no collective waits in vain; what remains is left out.",
        hints=[
            "Begin with `range(rank, num_examples, size)`. Are the shares of 11 examples equally long?",
            "Leave out the remainder: stop at `num_examples // size * size`.",
        ],
        solution="def share(num_examples, rank, size):\n"
        "    return list(range(rank, num_examples // size * size, size))\n",
    ),
    "2.sent": Check(
        function="sent", cases=[(1_000_000, 2), (1_000_000, 8), (25_557_032, 64)], expected=_sent,
        why="2 (n − 1) / n of the gradients: with many workers nearly twice their size, however many there are.",
        hints=[
            "In the first round each worker passes on n − 1 parts, each one n-th of the gradients; in the "
            "second as many.",
            "2 × (workers − 1) parts of 4 × parameters / workers bytes each.",
        ],
        solution="def sent(parameters, workers):\n    return 2 * (workers - 1) * 4 * parameters / workers\n",
    ),
}  # fmt: skip
"""how the exercises are judged, by key"""
