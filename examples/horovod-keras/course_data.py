"""Fashion-MNIST and CIFAR-10 for the scripts beside this file, from files that lie ready: nothing is downloaded."""

import os
import sys

import numpy as np
from tensorflow import keras

from rueda.tasks.datasets import published, store


def load(name, examples=None):
    """Return (x_train, y_train), (x_test, y_test): uint8 [N, height, width, channels] and int32 [N].

    The files are those of ``RUEDA_DATA`` or of Rueda's cache (``rueda data get cifar-10``), else those of
    ``keras.datasets`` if it has downloaded them already. ``examples`` takes the first N of each part.
    """
    wanted = published(name)
    found = store.locate(wanted)
    if found is not None:
        parts = [wanted.arrays(lambda file: wanted.read(found.folder, file), split) for split in ("train", "test")]
        pairs = [(part.inputs.permute(0, 2, 3, 1).numpy(), part.targets.numpy()) for part in parts]
    else:
        module = {"cifar-10": "cifar10", "fashion-mnist": "fashion_mnist"}[name]
        cache = os.path.join(os.environ.get("KERAS_HOME", os.path.expanduser("~/.keras")), "datasets")
        if not any(entry.startswith(name) for entry in (os.listdir(cache) if os.path.isdir(cache) else ())):
            sys.exit(f"{name} is not here; run `rueda data get {name}`, or set RUEDA_DATA to a folder that has it")
        pairs = getattr(keras.datasets, module).load_data()
    return [(x.reshape(*x.shape[:3], -1)[:examples], np.asarray(y, np.int32).reshape(-1)[:examples]) for x, y in pairs]
