"""The module ``horovod.keras`` by its two names, its arguments, and what it says where Keras is missing."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rueda.hvd.keras as hvd
from frameworks import keras_cases as cases
from harness import workers
from rueda.hvd import alias
from rueda.hvd.names import NAMES

SIGNATURES = {  # of Horovod 0.28.1, in its order
    "DistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients num_groups groups process_set "
    "scale_local_gradients",
    "PartialDistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients groups process_set "
    "local_layers scale_local_gradients",
    "allreduce": "value name average prescale_factor postscale_factor op compression",
    "allgather": "value name",
    "broadcast": "value root_rank name",
    "reducescatter": "value name op",
    "broadcast_global_variables": "root_rank",
    "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
    "callbacks.BroadcastGlobalVariablesCallback": "root_rank device local_variables",
    "callbacks.MetricAverageCallback": "device",
    "callbacks.LearningRateScheduleCallback": "initial_lr multiplier start_epoch end_epoch staircase "
    "momentum_correction steps_per_epoch",
    "callbacks.LearningRateWarmupCallback": "initial_lr warmup_epochs momentum_correction steps_per_epoch verbose",
    "callbacks.BestModelCheckpoint": "monitor verbose save_weights_only mode save_freq",
    "elastic.KerasState": "model optimizer",
    "elastic.CommitStateCallback": "state batches_per_commit",
}


@workers(2, framework="tensorflow")
def test_arguments_and_names_are_horovods() -> None:
    cases.keras()
    for path, arguments in SIGNATURES.items():
        value = hvd
        for part in path.split("."):
            value = getattr(value, part)
        own = [name for name in inspect.signature(value).parameters if name != "self"]
        assert own[: len(arguments.split())] == arguments.split(), path
    for name in NAMES.values():
        if name.module.startswith("horovod.keras"):
            home = hvd
            for part in name.module.split(".")[2:]:
                home = getattr(home, part)
            assert getattr(home, name.name) is not None
    variable = cases.keras().Variable(1.0)
    for given, number in ((None, 0), (variable, 1), ([variable, variable], 2)):
        assert len(hvd.callbacks.BroadcastGlobalVariablesCallback(0, "", given)._local) == number
    with pytest.raises(ValueError, match="local_variables: expected variables"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=["w"])


@workers(2, framework="tensorflow")
def test_xla_is_turned_off_and_the_best_model_is_kept() -> None:
    cases.xla_is_turned_off()


def test_one_module_by_three_names_and_a_missing_keras() -> None:
    """In a new process: ``horovod.tensorflow.keras`` is ``horovod.keras``; without Keras the error names pip."""
    script = """
import rueda.hvd; rueda.hvd.install()
import horovod.keras as one, horovod.tensorflow.keras as two, rueda.hvd.tensorflow.keras as three
assert one is two is three
import horovod.tensorflow.keras.callbacks, horovod.keras.callbacks
assert horovod.tensorflow.keras.callbacks is horovod.keras.callbacks is one.callbacks
from horovod.tensorflow.keras.callbacks import MetricAverageCallback
import keras
assert issubclass(MetricAverageCallback, keras.callbacks.Callback)
import sys
from rueda.hvd.keras import family
sys.modules["keras"] = None
try:
    family.load("keras")
except ImportError as error:
    assert str(error) == "keras is needed but not installed: run `pip install 'rueda[keras]'`", error
else:
    raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "KERAS_BACKEND": "torch"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_is_not_keras_is_refused() -> None:
    assert Path(alias.FOLDER).is_dir()
    with pytest.raises(ValueError, match="expected a model or an optimizer of keras or tf_keras, got object"):
        hvd.DistributedOptimizer(object())
