"""Elastic scripts for TensorFlow and Keras, in the shape of Horovod's published examples, whose workers are killed.

Every gradient is 1 and the rate is 1, so that a weight counts the steps: a step that is lost, or applied twice, shows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, signal, sys, time
if os.environ.get("RUEDA_ELASTIC_PENDING"):
    time.sleep(600)  # this process takes a killed one's place: it would repeat what is over, and ends with the job
import numpy as np
import tensorflow as tf
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras

def die(rank, generation):
    if hvd.rank() == rank and os.environ["RUEDA_ELASTIC_GENERATION"] == str(generation):
        os.kill(os.getpid(), signal.SIGKILL)

def say(what, **values):
    more = "".join(f" {name}={value}" for name, value in values.items())
    print(f"{what} pid={os.getpid()} size={hvd.size()}{more}", flush=True)

def counter():
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return tf.keras.Sequential([tf.keras.Input((1,)), layer])

def mean(labels, outputs):
    return tf.reduce_mean(outputs)

hvd.init()
say("began")

# Model.fit with the three callbacks; after a reset one more batch is fitted, as in the published example.
model = counter()
optimizer = hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), backward_passes_per_step=1)
model.compile(loss=mean, optimizer=optimizer)
data = tf.data.Dataset.from_tensor_slices((np.ones((4, 1), "float32"), np.ones((4, 1), "float32"))).repeat().batch(2)
model.fit(data, steps_per_epoch=1, epochs=1, verbose=0)
state = hvd_keras.elastic.KerasState(model, batch=0, epoch=0, total=1, entered=0)

def on_state_reset():
    state.model.optimizer.learning_rate.assign(1.0)
    state.model.fit(data, steps_per_epoch=1, epochs=1, verbose=0)
    state.total += 1

state.register_reset_callbacks([on_state_reset])

class Count(tf.keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        state.total += 1
        if batch == 2 and state.epoch == 1:
            die(2, 0)

callbacks = [
    Count(), hvd_keras.elastic.UpdateEpochStateCallback(state), hvd_keras.elastic.UpdateBatchStateCallback(state),
    hvd_keras.elastic.CommitStateCallback(state, batches_per_commit=2),
]

@hvd_keras.elastic.run
def fit(state):
    say("fit", epoch=state.epoch, batch=state.batch)
    state.model.fit(data, steps_per_epoch=4, epochs=3 - state.epoch, callbacks=callbacks, verbose=0)

fit(state)
assert state.epoch == 3 and float(model.get_weights()[0][0, 0]) == -state.total, (model.get_weights(), state.total)
say("fitted")

# A tf.function, traced once, with DistributedGradientTape.
model, optimizer = counter(), tf.keras.optimizers.SGD(1.0)

@tf.function
def training_step(inputs, allreduce=True):
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(model(inputs))
    if allreduce:
        tape = hvd.DistributedGradientTape(tape, gradient_predivide_factor=2.0)
    optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))

training_step(tf.ones([2, 1]), allreduce=False)

@hvd.elastic.run
def train(state):
    say("train", batch=state.batch)
    while state.batch < 9:
        training_step(tf.ones([2, 1]))
        state.batch += 1
        if state.batch == 5:
            die(1, 1)
        if state.batch % 2 == 0:
            state.commit()

state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
state.register_reset_callbacks([lambda: optimizer.learning_rate.assign(1.0)])
train(state)
assert float(model.get_weights()[0][0, 0]) == -1 - 9, model.get_weights()
say("trained")

# Variables, on the worker that is left.
total = tf.Variable(0.0)
state = hvd.elastic.TensorFlowState([total], batch=0)

@hvd.elastic.run
def add(state):
    while state.batch < 3:
        total.assign_add(hvd.allreduce(tf.constant(1.0), name="one"))
        state.batch += 1
        state.commit()

add(state)
assert float(total) == 3
say("ended")
"""
_LINE = re.compile(r"(\w+) pid=(\d+) size=(\d)(?: epoch=(\d+))?(?: batch=(\d+))?")


def test_keras_and_tensorflow_states_survive_killed_workers(tmp_path: Path) -> None:
    """Three workers: one is killed in Model.fit, a second in a tf.function; the third finishes."""
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "rueda", "horovodrun", "-np", "3", "--min-np", "1", sys.executable, "train.py"]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    environ = {name: value for name, value in environ.items() if not name.startswith(("RANK", "WORLD_SIZE", "LOCAL_"))}
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=400)
    said = [match.groups() for match in _LINE.finditer(done.stdout)]
    assert done.returncode == 0, done.stdout + done.stderr
    began = {pid for what, pid, *_ in said if what == "began"}
    # The killed one's third batch of the second epoch was not committed: the commit before it was after its second.
    assert sorted(line[2:] for line in said if line[0] == "fit") == [("2", "1", "1")] * 2 + [("3", "0", "0")] * 3
    assert sorted(line[2:5:2] for line in said if line[0] == "train") == [("1", "4"), ("2", "0"), ("2", "0")]
    survivors = {pid for what, pid, *_ in said if what == "fitted"}
    assert len(began) == 3 and survivors < began and len(survivors) == 2  # they kept their processes
    assert [size for what, _, size, *_ in said if what == "ended"] == ["1"]
