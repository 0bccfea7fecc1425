"""The lecture's CIFAR-10 network with LAMB, as it was written for Horovod, Keras 2 and tensorflow_addons.

rueda run --legacy-keras -np 2 python cifar10_old.py
"""

import argparse

import horovod.tensorflow.keras as hvd
import tensorflow as tf
import tensorflow_addons as tfa
from course_data import load
from networks import lecture_network

parser = argparse.ArgumentParser(description="CIFAR-10 with Horovod and Keras 2")
parser.add_argument("--batch-size", type=int, default=512, help="examples a worker and step")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--base-lr", type=float, default=0.005, help="for one worker")
parser.add_argument("--adam", action="store_true", help="Adam instead of LAMB")
parser.add_argument("--examples", type=int, help="use only so many")
args = parser.parse_args()

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

(x_train, y_train), _ = load("cifar-10", args.examples)
dataset = tf.data.Dataset.from_tensor_slices((tf.cast(x_train, tf.float32) / 255.0, tf.cast(y_train, tf.int64)))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(10000).batch(args.batch_size)

scaled_lr = args.base_lr * hvd.size()
opt = tf.keras.optimizers.Adam(lr=scaled_lr) if args.adam else tfa.optimizers.LAMB(learning_rate=scaled_lr)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)

model = lecture_network(batch_norm=True)
# Horovod: Specify `experimental_run_tf_function=False` to ensure TensorFlow uses hvd.DistributedOptimizer()
model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"],
    experimental_run_tf_function=False,
)  # fmt: skip

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))

steps = len(x_train) // args.batch_size // hvd.size()
model.fit(dataset, steps_per_epoch=steps, callbacks=callbacks, epochs=args.epochs, verbose=2 if hvd.rank() == 0 else 0)
