"""LAMB and NovoGrad, of the Keras behind ``tf.keras``."""

from __future__ import annotations

if __name__ == "tensorflow_addons.optimizers":
    from rueda.hvd.legacy_keras.addons import optimizers
    from rueda.hvd.legacy_keras.replacement import no_attribute

    globals().update(optimizers())
    __path__: list[str] = []  # so that `from tensorflow_addons.optimizers import Lookahead` is explained, too

    def __getattr__(name: str) -> object:
        raise no_attribute(f"optimizers.{name}")
