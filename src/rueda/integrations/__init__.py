"""Parts of Rueda for use in the training loops of other libraries.

===================================  ======================================================================
``rueda.integrations``               ``NoiseMeter``: the gradient noise scale in any loop
``rueda.integrations.lightning``     ``LargeBatch``: a callback for Lightning's Trainer
``rueda.integrations.transformers``  ``NoiseScaleCallback``: a callback for the Trainer of Hugging Face
===================================  ======================================================================

Optimizers, schedules and normalisation layers are torch's own classes or subclasses of them, so they need no adapter;
:mod:`rueda.keras` has those of Keras. Importing this package imports none of the frameworks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.integrations.noise_meter import NoiseMeter

__all__ = ["NoiseMeter"]

__getattr__ = lazily(__name__, {"NoiseMeter": "noise_meter"})


def __dir__() -> list[str]:
    return __all__
