"""Experiment trackers that a training can write to, in addition to its run folder: ``rueda train --track NAME``.

===============  ============================================================  =========================================
``tensorboard``  events in ``RUN/tensorboard``                                 ``tensorboard --logdir runs``
``mlflow``       ``MLFLOW_TRACKING_URI``, or the database ``mlflow.db``        ``mlflow ui --backend-store-uri
                 beside the run folder                                         sqlite:///runs/mlflow.db``
``wandb``        offline, in ``RUN/wandb``; ``WANDB_MODE=online`` sends it     ``wandb sync RUN/wandb/offline-run-*``
===============  ============================================================  =========================================

Rank 0 alone writes. A resumed run continues its entry. The figures are those of the rows of ``metrics.jsonl``, under
the same names, at the same steps. Importing this package imports none of the trackers.
"""

from __future__ import annotations

from rueda.train.trackers.opening import checked_names, open_trackers
from rueda.train.trackers.tracker import Tracker

__all__ = ["Tracker", "checked_names", "open_trackers"]
