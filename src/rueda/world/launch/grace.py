"""How much time the workers have to save after a signal.

A scheduler has its own limit between SIGTERM and SIGKILL: Slurm's ``KillWait``, and ``terminationGracePeriodSeconds``
of a Kubernetes pod, 30 seconds by default. The launcher ends the workers ``_MARGIN_SECONDS`` earlier, so that it can
still say which of them had not ended.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping

from rueda.world.signals import grace_seconds

_MARGIN_SECONDS = 2.0
_POD_SECONDS = 30.0


def time_to_save(number: int, environ: Mapping[str, str], grace: float | None = None) -> float:
    """Return how many seconds the workers have to save after this signal, as the scheduler's own limit allows.

    Args:
        number: the signal.
        environ: the environment, which shows the scheduler.
        grace: the seconds without a scheduler; by default :func:`grace_seconds`.

    >>> time_to_save(signal.SIGTERM, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    28.0
    >>> time_to_save(signal.SIGUSR2, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    30.0
    """
    grace = grace_seconds(environ) if grace is None else grace
    limit = _scheduler_limit(number, environ)
    return grace if limit is None else max(0.0, min(grace, limit - _MARGIN_SECONDS))


def _scheduler_limit(number: int, environ: Mapping[str, str]) -> float | None:
    """Return the seconds after which the scheduler itself kills the job; None if no such limit is known.

    Schedulers kill after SIGTERM only; the other signals are announcements or come from a person. A pod's grace period
    is not visible inside the pod, so that Kubernetes' default is assumed unless ``RUEDA_GRACE`` is set.
    """
    if number != signal.SIGTERM:
        return None
    if "SLURM_JOB_ID" in environ:
        try:
            asked = ["scontrol", "show", "config"]
            config = subprocess.run(asked, capture_output=True, text=True, timeout=1, stdin=subprocess.DEVNULL).stdout
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r"^KillWait\s*=\s*(\d+)", config, re.MULTILINE)
        return None if found is None else float(found[1])
    if "KUBERNETES_SERVICE_HOST" in environ and "RUEDA_GRACE" not in environ:
        return _POD_SECONDS
    return None
