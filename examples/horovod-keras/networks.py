"""The two networks of the course, for Keras 3 and for tf_keras alike."""

from tensorflow import keras

layers = keras.layers


def lecture_network(batch_norm):
    """Build the CIFAR-10 network of a lecture on convergence at scale: 482,442 parameters, 490,378 with batch norm."""

    def convolution(x, filters, size, stride=1):
        x = layers.Conv2D(filters, size, strides=stride, padding="same" if size == 3 else "valid")(x)
        return layers.BatchNormalization()(x) if batch_norm else x

    def block(x, a, b, c, stride):
        y = layers.ReLU()(convolution(x, a, 1, stride))
        y = layers.ReLU()(convolution(y, b, 3))
        y = convolution(y, c, 1)
        return layers.ReLU()(layers.add([y, convolution(x, c, 1, stride)]))

    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolution(layers.ZeroPadding2D(3)(inputs), 64, 7, 2))
    x = layers.MaxPooling2D(3, 2)(x)
    x = block(x, 64, 64, 256, 1)
    x = block(x, 128, 128, 512, 2)
    x = layers.AveragePooling2D(2, padding="same")(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(layers.Flatten()(x)))


def residual_network(width, dropout=0.01):
    """Build the wide residual network for Fashion-MNIST: two blocks of 16, 32 and 64 times ``width`` channels each."""

    def block(x, filters):
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(x)))
        y = layers.Dropout(dropout)(y)
        y = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(y))
        if x.shape[-1] != filters:
            x = layers.Conv2D(filters, 1)(x)
        return layers.ReLU()(layers.add([x, y]))

    inputs = keras.Input((28, 28, 1))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(inputs)))
    for stage, filters in enumerate((16 * width, 32 * width, 64 * width)):
        x = layers.MaxPooling2D(2)(x) if stage else x
        x = block(block(x, filters), filters)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
