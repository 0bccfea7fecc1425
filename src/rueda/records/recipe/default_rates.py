"""The learning rate that an optimizer gets where a user changes the optimizer and gives no rate.

A rate that was tuned for one optimizer means nothing to another: SGD's 0.1 makes LAMB diverge. The values are starting
points for one worker's batch; they are not tuned for any task.

=============  =====  =========================================================================================
``sgd``        0.01   with momentum 0.9 (Krizhevsky et al. 2012, AlexNet)
``adam``       0.001  Kingma and Ba 2015
``adamw``      0.001  Loshchilov and Hutter 2019
``lars``       0.1    SGD's rate (He et al. 2016), at which biases and norms train. A weight matrix trains at
                      trust x |w| / |g| times as much (You et al. 2017). With their trust of 0.001 the small
                      CNN hardly trains at this rate (test loss 2.26 after an epoch of glyphs), with 0.02 it does
``larc``       0.1    SGD's rate again, to which the layers' rates are clipped
``lamb``       0.005  no published default: the value at which the built-in tasks' networks train
``novograd``   0.01   the default of :class:`rueda.optim.NovoGrad`
=============  =====  =========================================================================================
"""

from __future__ import annotations

DEFAULT_RATES: dict[str, dict[str, float | None]] = {
    "sgd": {"rate": 0.01},
    "adam": {"rate": 1e-3},
    "adamw": {"rate": 1e-3},
    "lars": {"rate": 0.1, "trust": 0.02},
    "larc": {"rate": 0.1, "trust": None},  # its own default, not that of lars
    "lamb": {"rate": 5e-3},
    "novograd": {"rate": 1e-2},
}
"""by optimizer, the fields of the recipe that hold its rate"""
INSTEAD = "instead of"
"""how the reason of such a rate begins"""
