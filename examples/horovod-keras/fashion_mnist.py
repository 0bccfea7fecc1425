"""Fashion-MNIST with a wide residual network, as people write it for Horovod, with Keras 3.

rueda run -np 2 python fashion_mnist.py --epochs 3
"""

import argparse

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from course_data import load
from networks import residual_network
from tensorflow import keras

parser = argparse.ArgumentParser(description="Fashion-MNIST with Horovod and Keras")
parser.add_argument("--batch-size", type=int, default=32, help="examples a worker and step")
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--base-lr", type=float, default=0.01, help="for one worker")
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--warmup-epochs", type=int, default=5)
parser.add_argument("--target-accuracy", type=float, default=0.85, help="stop when this many epochs have reached it:")
parser.add_argument("--patience", type=int, default=2)
parser.add_argument("--width", type=int, default=1, help="10 in the course, which needs a GPU")
parser.add_argument("--partition", default="shard", choices=("shard", "random"))
parser.add_argument("--examples", type=int, help="use only so many")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint", default="fashion_mnist.keras")
args = parser.parse_args()

# Horovod: initialize Horovod.
hvd.init()

# Horovod: pin the GPU to be used by this process: one GPU a process.
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

(x_train, y_train), (x_test, y_test) = load("fashion-mnist", args.examples)
num_train = len(x_train)
x_train, x_test = x_train / np.float32(255), x_test / np.float32(255)

# Horovod: partition the data. By shard, rank r of N takes the examples r, r + N, r + 2N ...; at random, each rank draws
# from all of them, in an order of its own.
if args.partition == "shard":
    x_train, y_train = x_train[hvd.rank() :: hvd.size()], y_train[hvd.rank() :: hvd.size()]
keras.utils.set_random_seed(args.seed + hvd.rank())


class Batches(keras.utils.PyDataset):
    """Endless batches in a random order, half of them mirrored; ``steps`` of them are an epoch."""

    def __init__(self, x, y, steps):
        super().__init__()
        self.x, self.y, self.steps = x, y, steps
        self.random = np.random.default_rng(args.seed + hvd.rank())
        self.on_epoch_end()

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        chosen = self.order[index * args.batch_size : (index + 1) * args.batch_size]
        mirrored = self.random.random((len(chosen), 1, 1, 1)) < 0.5
        return np.where(mirrored, self.x[chosen][:, :, ::-1], self.x[chosen]), self.y[chosen]

    def on_epoch_end(self):
        """Shuffle."""
        self.order = self.random.permutation(len(self.x))


class StopAtTarget(keras.callbacks.Callback):
    """Stops when the last ``patience`` epochs have all reached the target; all ranks see the same averaged metric."""

    reached = 0

    def on_epoch_end(self, epoch, logs=None):
        """Count."""
        self.reached = self.reached + 1 if logs["val_accuracy"] >= args.target_accuracy else 0
        self.model.stop_training = self.reached >= args.patience


# Horovod: scale the learning rate by the number of workers, and wrap the optimizer.
scaled_lr = args.base_lr * hvd.size()
opt = keras.optimizers.SGD(scaled_lr, momentum=args.momentum)
opt = hvd.DistributedOptimizer(opt)

model = residual_network(args.width)
model.compile(optimizer=opt, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    # Horovod: broadcast rank 0's initial state, average the metrics, warm up.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=args.warmup_epochs, verbose=1),
    StopAtTarget(),
]
# Horovod: save checkpoints on rank 0 only, or the ranks would overwrite each other's files.
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint(args.checkpoint))

# Horovod: the same number of steps on every rank.
steps = num_train // args.batch_size // hvd.size()
model.fit(
    Batches(x_train, y_train, steps),
    epochs=args.epochs,
    validation_data=(x_test[hvd.rank() :: hvd.size()], y_test[hvd.rank() :: hvd.size()]),
    callbacks=callbacks,
    verbose=2 if hvd.rank() == 0 else 0,
)
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
if hvd.rank() == 0:
    print(f"Test loss: {loss:.4f}")
    print(f"Test accuracy: {accuracy:.4f}")
