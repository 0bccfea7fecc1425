"""MLflow: a run of the experiment that is named as the task."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rueda.records import Run
from rueda.train.trackers.tracker import remember, remembered, settings, task_of


class MlflowTracker:
    """Writes to the server or store of ``MLFLOW_TRACKING_URI``, or to the database ``mlflow.db`` beside the run folder.

    It uses MLflow's client, so that a run that the user's own code has started stays the active one.
    """

    def __init__(self, run: Run) -> None:
        from mlflow import MlflowClient

        folder = run.folder.resolve()
        store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.parent / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=store)
        known = remembered(run, "mlflow")
        if known is None:
            name = task_of(run)
            found = self._client.get_experiment_by_name(name)
            artifacts = None if "MLFLOW_TRACKING_URI" in os.environ else (folder.parent / "mlflow-artifacts").as_uri()
            experiment = self._client.create_experiment(name, artifacts) if found is None else found.experiment_id
            known = self._client.create_run(experiment, run_name=folder.name).info.run_id
            remember(run, "mlflow", known)
            for field, value in settings(run).items():
                self._client.log_param(known, field, value)
        else:
            self._client.set_terminated(known, "RUNNING")
        self._identity = known

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write the figures in one batch."""
        import time

        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in figures.items()]
        self._client.log_batch(self._identity, metrics=metrics)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._identity)
