"""How far a job can scale, what it will cost, and which recipe to train it with: arithmetic on a profile.

::

    Profile, Cluster ──► predict ──► Prediction     seconds of a step, images/s, scaling efficiency
    Prediction, noise scale ──► make_plan ──► Plan  epochs, hours and money to the target, for workers x batch
    Plan ──► choose_recipe ──► Recipe               with the reason beside each choice

==================  ================================================================================
``predict``         the step of N workers on a cluster (:mod:`rueda.plan.prediction`)
``load_cluster``    a shipped cluster by name, or one's own TOML file (:mod:`rueda.plan.cluster_files`)
``this_machine``    the machine that was profiled, as a cluster
``make_plan``       the whole table, the advice and what is not known (:mod:`rueda.plan.planning`)
``choose_recipe``   the recipe for some workers, without search (:mod:`rueda.plan.choice`)
``compare_run``     what was predicted against what a run did (:mod:`rueda.plan.hindsight`)
==================  ================================================================================

Nothing here needs torch.
"""

from __future__ import annotations

from rueda.plan.choice import choose_recipe
from rueda.plan.cluster import Cluster, Link, this_machine
from rueda.plan.cluster_files import cluster_names, load_cluster
from rueda.plan.hindsight import compare_run
from rueda.plan.planning import make_plan
from rueda.plan.prediction import Prediction, predict

__all__ = [
    "Cluster",
    "Link",
    "Prediction",
    "choose_recipe",
    "cluster_names",
    "compare_run",
    "load_cluster",
    "make_plan",
    "predict",
    "this_machine",
]
