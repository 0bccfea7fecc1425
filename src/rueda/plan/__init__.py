"""Predict from a profile how far a training scales, what it costs, and with which recipe to train it.

::

    Profile, Cluster ──► predict ──► Prediction     seconds of a step, throughput, scaling efficiency
    Prediction, noise scale ──► make_plan ──► Plan  epochs, hours and cost to the target, for each workers x batch
    Plan ──► choose_recipe ──► Recipe               with the reason for each choice
    Plan, Cluster ──► plan_failures ──► FailurePlan checkpoint interval and spare nodes, where nodes fail

====================  ==================================================================================
``predict``           predicts a step of N workers on a cluster (:mod:`rueda.plan.prediction`)
``load_cluster``      loads a shipped cluster by name, or a TOML file (:mod:`rueda.plan.cluster_files`)
``DevicePeaks``       a device's peaks, for the roofline that bounds or predicts it (:mod:`rueda.plan.roofline`)
``this_machine``      describes the machine that was profiled as a cluster
``make_plan``         makes the table, the advice and the list of unknowns (:mod:`rueda.plan.planning`)
``choose_recipe``     chooses the recipe for N workers by rules, without search (:mod:`rueda.plan.choice`)
``plan_failures``     chooses the checkpoint interval and the spare nodes (:mod:`rueda.plan.failure_planning`)
``predict_exchange``  predicts an update with exchanges every H updates (:mod:`rueda.plan.exchange_interval`)
``compare_run``       compares a run with what the profile predicts for it (:mod:`rueda.plan.run_comparison`)
====================  ==================================================================================

No module here imports torch.
"""

from __future__ import annotations

from rueda.plan.choice import choose_recipe
from rueda.plan.cluster import Cluster, Link, this_machine
from rueda.plan.cluster_files import cluster_names, load_cluster
from rueda.plan.exchange_interval import predict_exchange
from rueda.plan.failure_planning import plan_failures
from rueda.plan.planning import make_plan
from rueda.plan.prediction import predict
from rueda.plan.roofline import DevicePeaks
from rueda.plan.run_comparison import compare_run
from rueda.records.plan import Prediction

__all__ = [
    "Cluster",
    "DevicePeaks",
    "Link",
    "Prediction",
    "choose_recipe",
    "cluster_names",
    "compare_run",
    "load_cluster",
    "make_plan",
    "plan_failures",
    "predict",
    "predict_exchange",
    "this_machine",
]
