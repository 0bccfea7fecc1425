"""The optimizers for large batches, and what goes with them.

====================  =================================================================================
``LARS``              a rate for every layer, from |w| / |g| (:mod:`rueda.optim.lars`)
``LARC``              the same as a wrapper round any torch optimizer (:mod:`rueda.optim.larc`)
``LAMB``              Adam's update, rescaled to each layer's weights (:mod:`rueda.optim.lamb`)
``NovoGrad``          gradients normalised by layer, then momentum (:mod:`rueda.optim.novograd`)
``AdaScale``          the rate times a measured gain, round any optimizer (:mod:`rueda.optim.adascale`)
``gain``              AdaScale's gain, a plain function
``parameter_groups``  weights in one group, biases and norms in another (:mod:`rueda.optim.groups`)
====================  =================================================================================

All are ``torch.optim.Optimizer`` s: schedulers, ``state_dict``, closures and parameter groups work as in
torch. Importing the package loads no torch; a name does, when it is first used.
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

__all__ = ["LAMB", "LARC", "LARS", "AdaScale", "NonFiniteError", "NovoGrad", "gain", "parameter_groups"]

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
    },
)


def __dir__() -> list[str]:
    return __all__
