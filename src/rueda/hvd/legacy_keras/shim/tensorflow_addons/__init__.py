"""The package that ``import tensorflow_addons`` loads with ``--legacy-keras``: a genuine one if it can be imported.

tensorflow_addons ended with TensorFlow 2.15 and cannot be imported with later ones; then ``optimizers`` with LAMB and
NovoGrad is Rueda's, and every other name is an error of one line.
"""

from __future__ import annotations

if __name__ == "tensorflow_addons":
    from rueda.hvd.legacy_keras.replacement import import_genuine, no_attribute, prepare

    if not import_genuine():
        prepare()

        def __getattr__(name: str) -> object:
            raise no_attribute(name)
