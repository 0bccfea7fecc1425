"""Optimizers for large-batch training.

====================  =================================================================================
``LARS``              a learning rate for each layer, from |w| / |g| (:mod:`rueda.optim.lars`)
``LARC``              the same as a wrapper around any torch optimizer (:mod:`rueda.optim.larc`)
``LAMB``              Adam's update, rescaled to each layer's weights (:mod:`rueda.optim.lamb`)
``NovoGrad``          gradients normalised per layer, then momentum (:mod:`rueda.optim.novograd`)
``AdaScale``          multiplies the rate of any optimizer by a measured gain (:mod:`rueda.optim.adascale`)
``gain``              the gain of AdaScale, as a function
``parameter_groups``  puts weights into one group, biases and norms into another (:mod:`rueda.optim.groups`)
``WeightAverage``     the exponential moving average of the weights (:mod:`rueda.optim.weight_average`)
====================  =================================================================================

All optimizers are subclasses of ``torch.optim.Optimizer``: schedulers, ``state_dict``, closures and parameter groups
work as in torch. Importing this package does not import torch; the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.errors import NonFiniteError
from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.optim.adascale import AdaScale, gain
    from rueda.optim.groups import parameter_groups
    from rueda.optim.lamb import LAMB
    from rueda.optim.larc import LARC
    from rueda.optim.lars import LARS
    from rueda.optim.novograd import NovoGrad
    from rueda.optim.weight_average import WeightAverage

__all__ = [
    "LAMB",
    "LARC",
    "LARS",
    "AdaScale",
    "NonFiniteError",
    "NovoGrad",
    "WeightAverage",
    "gain",
    "parameter_groups",
]

__getattr__ = lazily(
    __name__,
    {
        "AdaScale": "adascale",
        "gain": "adascale",
        "LAMB": "lamb",
        "LARC": "larc",
        "LARS": "lars",
        "NovoGrad": "novograd",
        "parameter_groups": "groups",
        "WeightAverage": "weight_average",
    },
)


def __dir__() -> list[str]:
    return __all__
