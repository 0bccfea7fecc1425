"""The Horovod front of Keras on 2 workers: its exchange against DDP's, its speed against TensorFlow's own strategy.

=============================================  ==========================================================  ============
what                                           against                                                     target
=============================================  ==========================================================  ============
share of a step that is gradient exchange      that of DistributedDataParallel, a network of the same size  at most 1.3
images/s of DistributedOptimizer               MultiWorkerMirroredStrategy, the same network                at least 1.0
=============================================  ==========================================================  ============

The network is a CNN with 1 million parameters on images of 32 x 32 x 3, 32 a worker; one thread a worker. The share is
1 - (seconds of a step without exchange) / (seconds of a step with it), both timed in turns in the same processes; the
difference in seconds stands beside it, since TensorFlow's step and torch's do not take equally long. The strategy needs
processes of its own: these take turns with ours, round by round. Figures are medians over rounds.

Run it with the interpreter that has TensorFlow::

    .venv-keras/bin/python benchmarks/hvd_keras.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from _common import answer_of, save

IMAGES, CHANNELS, HIDDEN = 32, (32, 64, 64), 896
Step = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="times that each of the three is started")
    parser.add_argument("--steps", type=int, default=40, help="steps of each in one start")
    parser.add_argument("--part", choices=[*PARTS], help="(of a worker)")
    arguments = parser.parse_args()
    if arguments.part:
        PARTS[arguments.part](arguments.steps)
        return
    if find_spec("tensorflow") is None:  # make bench runs all files with the interpreter of .venv
        print("hvd_keras: TensorFlow is not installed here; run it with .venv-keras/bin/python")
        return
    os.environ.update(
        TF_CPP_MIN_LOG_LEVEL="3", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1", CUDA_VISIBLE_DEVICES="-1",
        KERAS_BACKEND="tensorflow",
    )  # fmt: skip
    answers: dict[str, list[dict[str, float]]] = {part: [] for part in PARTS}
    for number in range(arguments.rounds):
        for part in [*PARTS] if number % 2 else reversed([*PARTS]):
            command = [__file__, "--part", part, "--steps", str(arguments.steps)]
            answer = answer_of(command, 2)
            if answer is None:
                sys.exit(f"{part}: a worker failed")
            answers[part].append(answer)
            print(f"{part:<10}" + "  ".join(f"{name} {value:.4g}" for name, value in answer.items()), flush=True)
    exchanges = {part: statistics.median(a["with"] - a["without"] for a in answers[part]) for part in ("ours", "ddp")}
    shares = {part: statistics.median(share(a) for a in answers[part]) for part in ("ours", "ddp")}
    speed = statistics.median(
        theirs["with"] / ours["with"] for ours, theirs in zip(answers["ours"], answers["mirrored"], strict=True)
    )
    results = {
        "exchange as a share of a step": {
            "target": "at most 1.3 of DDP's",
            **shares,
            "ratio": shares["ours"] / shares["ddp"],
        },
        "exchange, seconds": {
            "target": "beside the share, since the frameworks' steps differ",
            **exchanges,
            "ratio": exchanges["ours"] / exchanges["ddp"],
        },
        "images/s": {
            "target": "at least 1.0 of MultiWorkerMirroredStrategy's",
            **{p: 2 * IMAGES / statistics.median(a["with"] for a in answers[p]) for p in ("ours", "mirrored")},
            "ratio": speed,
        },
    }
    for name, row in results.items():
        print(f"{name:<32}" + "  ".join(f"{key} {value}" for key, value in row.items()))
    save(
        "hvd_keras",
        {"workers": 2, "rounds": arguments.rounds, "steps": arguments.steps, "results": results},
        seeds=(0,),
    )


def share(answer: dict[str, float]) -> float:
    return 1.0 - answer["without"] / answer["with"]


def in_turns(steps: dict[str, Step], repeats: int, barrier: Step) -> dict[str, float]:
    """Return the median seconds of a step of each, timed in turns of five."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(3 + repeats // 5):
        for name, step in steps.items():
            barrier()
            begun = time.perf_counter()
            for _ in range(5):
                step()
            if number >= 3:
                seconds[name].append((time.perf_counter() - begun) / 5)
    return {name: statistics.median(values) for name, values in seconds.items()}


def answer(values: dict[str, float], rank: int) -> None:
    if rank == 0:
        print(json.dumps(values), flush=True)


def keras_network() -> Any:
    import keras

    keras.utils.set_random_seed(0)
    layers: list[Any] = [keras.layers.Input((32, 32, 3))]
    for channels in CHANNELS:
        layers += [keras.layers.Conv2D(channels, 3, padding="same", activation="relu"), keras.layers.MaxPool2D()]
    layers += [keras.layers.Flatten(), keras.layers.Dense(HIDDEN, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential(layers)


def keras_step(optimizer: Any, strategy: Any = None) -> Step:
    """A compiled training step on one batch."""
    import keras
    import tensorflow as tf

    network = keras_network()
    images = tf.random.normal((IMAGES, 32, 32, 3), seed=0)
    labels = tf.random.uniform((IMAGES,), maxval=10, dtype=tf.int32, seed=0)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def train() -> None:
        with tf.GradientTape() as tape:
            loss = entropy(labels, network(images, training=True)) / IMAGES
        variables = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    optimizer.build(network.trainable_variables)
    return tf.function(train if strategy is None else lambda: strategy.run(train))  # type: ignore[no-any-return]


def ours(num_steps: int) -> None:
    import keras

    import rueda.hvd.keras as hvd

    hvd.init()
    steps = {
        "with": keras_step(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))),
        "without": keras_step(keras.optimizers.SGD(0.01, momentum=0.9)),
    }
    answer(in_turns(steps, num_steps, lambda: hvd.allreduce(0.0, name="barrier")), hvd.rank())
    hvd.shutdown()


def mirrored(num_steps: int) -> None:
    rank = int(os.environ["RANK"])
    port = int(os.environ["MASTER_PORT"])  # of a store that nobody opens here
    workers = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1 if port < 65000 else port - 1}"]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        step = keras_step(keras.optimizers.SGD(0.01, momentum=0.9), strategy)
    answer(in_turns({"with": step}, num_steps, lambda: None), rank)


def ddp(num_steps: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    def network() -> Any:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for before, channels in zip((3, *CHANNELS), CHANNELS, strict=False):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(CHANNELS[-1] * 16, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)
        )

    images, labels = torch.randn(IMAGES, 3, 32, 32), torch.randint(10, (IMAGES,))

    def step_of(forward: Any) -> Step:
        optimizer = torch.optim.SGD(forward.parameters(), lr=0.01, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(forward(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    dist.init_process_group("gloo")
    steps = {"with": step_of(nn.parallel.DistributedDataParallel(network())), "without": step_of(network())}
    answer(in_turns(steps, num_steps, dist.barrier), dist.get_rank())
    dist.destroy_process_group()


PARTS: dict[str, Callable[[int], None]] = {"ours": ours, "mirrored": mirrored, "ddp": ddp}

if __name__ == "__main__":
    main()
