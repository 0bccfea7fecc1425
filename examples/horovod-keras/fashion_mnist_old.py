"""Fashion-MNIST as it was written for Horovod and Keras 2, with names that TensorFlow 2.16 and later no longer have.

rueda run --legacy-keras -np 2 python fashion_mnist_old.py --epochs 3
"""

import argparse

import horovod.tensorflow.keras as hvd
import tensorflow as tf
import tensorflow_addons as tfa
from course_data import load
from networks import residual_network
from tensorflow.keras.callbacks import ModelCheckpoint
from tensorflow.keras.optimizers import SGD
from tensorflow.keras.preprocessing.image import ImageDataGenerator

parser = argparse.ArgumentParser(description="Fashion-MNIST with Horovod and Keras 2")
parser.add_argument("--batch-size", type=int, default=32, help="examples a worker and step")
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--base-lr", type=float, default=0.01, help="for one worker")
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--decay", type=float, default=1e-4, help="of the learning rate, a step")
parser.add_argument("--warmup-epochs", type=int, default=5)
parser.add_argument("--novograd", action="store_true", help="NovoGrad instead of SGD")
parser.add_argument("--width", type=int, default=1, help="10 in the course, which needs a GPU")
parser.add_argument("--examples", type=int, help="use only so many")
parser.add_argument("--checkpoint", default="fashion_mnist.h5")
args = parser.parse_args()

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

(x_train, y_train), (x_test, y_test) = load("fashion-mnist", args.examples)
y_train, y_test = tf.keras.utils.to_categorical(y_train, 10), tf.keras.utils.to_categorical(y_test, 10)
# Every rank draws at random from all of the data, with a seed of its own.
train_iter = ImageDataGenerator(rescale=1 / 255, horizontal_flip=True).flow(
    x_train, y_train, batch_size=args.batch_size, seed=hvd.rank()
)
test_iter = ImageDataGenerator(rescale=1 / 255).flow(x_test, y_test, batch_size=args.batch_size, shuffle=False)

scaled_lr = args.base_lr * hvd.size()
if args.novograd:
    opt = tfa.optimizers.NovoGrad(lr=scaled_lr)
else:
    opt = SGD(lr=scaled_lr, momentum=args.momentum, decay=args.decay)
opt = hvd.DistributedOptimizer(opt)

model = residual_network(args.width)
model.compile(loss="categorical_crossentropy", optimizer=opt, metrics=["accuracy"], experimental_run_tf_function=False)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=args.warmup_epochs, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(ModelCheckpoint(args.checkpoint))

history = model.fit_generator(
    train_iter,
    steps_per_epoch=len(train_iter) // hvd.size(),
    epochs=args.epochs,
    verbose=2 if hvd.rank() == 0 else 0,
    callbacks=callbacks,
    validation_data=test_iter,
    validation_steps=len(test_iter),
)
if hvd.rank() == 0:
    print("Training accuracy:", history.history["acc"][-1])
    print("Test accuracy:", history.history["val_acc"][-1])
