"""The large-batch toolbox for Keras 3, on its TensorFlow, torch and JAX backends.

===========================  ===========================================================================
``Lars``                     :class:`rueda.optim.LARS` (:mod:`rueda.keras.lars`)
``Lamb``                     :class:`rueda.optim.LAMB` (:mod:`rueda.keras.lamb`)
``NovoGrad``                 :class:`rueda.optim.NovoGrad` (:mod:`rueda.keras.novograd`)
``MomentumSGD``              SGD that needs no momentum correction (:mod:`rueda.keras.momentum_sgd`)
``GhostBatchNormalization``  batch norm over parts of the batch (:mod:`rueda.keras.ghost_batch_normalization`)
``schedule``                 a schedule that changes the rate at every step (:mod:`rueda.keras.schedules`)
``epochs``                   the same as a function of the epoch, for a callback
===========================  ===========================================================================

Scaling rules (:mod:`rueda.optim.scaling`), schedules (:mod:`rueda.optim.schedules`) and batch growth
(:mod:`rueda.optim.batch_growth`) need no framework and are used from Keras as they are. Importing this package imports
Keras, and registers its classes, so that saved models can be loaded; it does not import torch by itself.
"""

from __future__ import annotations

from rueda.keras.ghost_batch_normalization import GhostBatchNormalization
from rueda.keras.lamb import Lamb
from rueda.keras.lars import Lars
from rueda.keras.momentum_sgd import MomentumSGD
from rueda.keras.novograd import NovoGrad
from rueda.keras.schedules import epochs, schedule

__all__ = ["GhostBatchNormalization", "Lamb", "Lars", "MomentumSGD", "NovoGrad", "epochs", "schedule"]
