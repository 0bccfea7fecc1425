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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rueda.optim.adascale import AdaScale, gain
    from rueda.optim.engine.nonfinite import NonFiniteError
    from rueda.optim.groups import parameter_groups
    from rueda.optim.lamb import LAMB
    from rueda.optim.larc import LARC
    from rueda.optim.lars import LARS
    from rueda.optim.novograd import NovoGrad

__all__ = ["LAMB", "LARC", "LARS", "AdaScale", "NonFiniteError", "NovoGrad", "gain", "parameter_groups"]

_HOMES = {
    "AdaScale": "adascale",
    "gain": "adascale",
    "LAMB": "lamb",
    "LARC": "larc",
    "LARS": "lars",
    "NonFiniteError": "engine.nonfinite",
    "NovoGrad": "novograd",
    "parameter_groups": "groups",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rueda.optim' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"rueda.optim.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
