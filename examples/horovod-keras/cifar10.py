"""The lecture's CIFAR-10 network in its five variants, as people write them for Horovod, with Keras 3.

rueda run -np 2 python cifar10.py --variant warmup

naive       Adam at 0.001, whatever the number of workers, and no batch norm
batch-norm  the same with batch norm
scaling     batch norm, Adam at 0.001 x workers
warmup      batch norm, Adam at 0.001 x workers, which it reaches after 3 epochs
lamb        batch norm, LAMB at 0.005 x workers
"""

import argparse
import json
import time

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from course_data import load
from networks import lecture_network
from tensorflow import keras

parser = argparse.ArgumentParser(description="CIFAR-10 with Horovod and Keras", epilog=__doc__)
parser.add_argument("--variant", default="warmup", choices=("naive", "batch-norm", "scaling", "warmup", "lamb"))
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=512, help="examples a worker and step")
parser.add_argument("--base-lr", type=float, help="for one worker; 0.001, and 0.005 for LAMB")
parser.add_argument("--warmup-epochs", type=int, default=3)
parser.add_argument("--partition", default="shard", choices=("shard", "random"))
parser.add_argument("--examples", type=int, help="use only so many")
parser.add_argument("--steps", type=int, help="steps an epoch; by default all of the data")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint", help="write the best model to this file")
parser.add_argument("--result", help="write the figures to this file, as JSON")
args = parser.parse_args()

# Horovod: initialize Horovod.
hvd.init()

# Horovod: pin the GPU to be used by this process: one GPU a process.
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

keras.utils.set_random_seed(args.seed + hvd.rank())  # different batches; the weights are broadcast from rank 0
(x_train, y_train), (x_test, y_test) = load("cifar-10", args.examples)

# Horovod: every rank has a part of the data to itself, or draws batches of its own from all of them.
train = tf.data.Dataset.from_tensor_slices((x_train, y_train))
if args.partition == "shard":
    train = train.shard(hvd.size(), hvd.rank())
train = train.shuffle(len(x_train), seed=args.seed + hvd.rank()).repeat().batch(args.batch_size)
test = tf.data.Dataset.from_tensor_slices((x_test, y_test)).shard(hvd.size(), hvd.rank()).batch(args.batch_size)


def scaled(images, labels):
    """Return images from 0 to 1."""
    return tf.cast(images, tf.float32) / 255, labels


train, test = (data.map(scaled).prefetch(2) for data in (train, test))

# Horovod: all ranks together make one pass; each makes the same number of steps, or the others would wait for it.
steps = args.steps or len(x_train) // args.batch_size // hvd.size()

# Horovod: the learning rate grows with the number of workers.
base_lr = args.base_lr or (0.005 if args.variant == "lamb" else 0.001)
scaled_lr = base_lr if args.variant in ("naive", "batch-norm") else base_lr * hvd.size()
if args.variant == "lamb":
    opt = keras.optimizers.Lamb(scaled_lr, epsilon=1e-6)
else:
    opt = keras.optimizers.Adam(scaled_lr)

# Horovod: wrap the optimizer, which then averages the gradients of all ranks.
opt = hvd.DistributedOptimizer(opt)

model = lecture_network(batch_norm=args.variant != "naive")
model.compile(optimizer=opt, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    # Horovod: all ranks start from rank 0's weights, random or from a checkpoint.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    # Horovod: average the metrics of all ranks at the end of each epoch, before other callbacks use them.
    hvd.callbacks.MetricAverageCallback(),
]
if args.variant == "warmup":
    callbacks.append(
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=args.warmup_epochs, verbose=1)
    )
# Horovod: save checkpoints on rank 0 only, or the ranks would overwrite each other's files.
if args.checkpoint and hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint(args.checkpoint, monitor="val_accuracy", save_best_only=True))

start = time.time()
history = model.fit(
    train, steps_per_epoch=steps, epochs=args.epochs, validation_data=test, callbacks=callbacks,
    verbose=2 if hvd.rank() == 0 else 0,
)  # fmt: skip
seconds = time.time() - start

if hvd.rank() == 0:
    result = {
        "variant": args.variant, "workers": hvd.size(), "seed": args.seed, "epochs": args.epochs,
        "updates": steps * args.epochs, "batch": args.batch_size * hvd.size(), "learning_rate": scaled_lr,
        "seconds": round(seconds, 1),
        "train_accuracy": history.history["accuracy"][-1], "test_accuracy": history.history["val_accuracy"][-1],
    }  # fmt: skip
    print(json.dumps(result))
    if args.result:
        with open(args.result, "w") as file:
            json.dump(result, file)
