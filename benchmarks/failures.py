"""24 simulated hours of 1,024 workers on 128 nodes that fail: goodput against checkpoint interval and spare nodes.

For each published rate of failures, and for checkpoints that are written synchronously (60 s) and asynchronously (5 s
of stall, 60 s until they are complete): what ``rueda plan`` chooses, the intervals of Young and Daly, and the best
interval of a larger simulation, all with the same random numbers. Wanted: the goodput at Daly's interval, and at the
chosen one, is within half a point of the best simulated. Nothing here is measured on a cluster.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from _common import save
from rueda.plan import load_cluster, make_plan
from rueda.plan.checkpoint_interval import best_interval, daly_interval, expected_seconds, young_interval
from rueda.plan.failures import PUBLISHED, FailureModel
from rueda.plan.published import RESNET_50, single_device
from rueda.plan.simulation import simulate
from rueda.records.failure_plan import FailurePlan, JobFailures, SimulatedGoodput

WORKERS, HOURS, SEED = 1024, 24.0, 0
WITHIN = 0.005
CHECKPOINTS = {"synchronous": (60.0, 60.0), "asynchronous": (5.0, 60.0)}


def planned(model: FailureModel) -> FailurePlan:
    """Plan a training of 24 hours on 1,024 A100."""
    profile = replace(single_device("ResNet-50", 256, 2470, 25_557_032), work=RESNET_50)
    cluster = replace(load_cluster("dgx-a100"), failures=model)
    found = make_plan(profile, cluster, workers=[WORKERS], batch=64, hours=HOURS).failures
    assert found is not None and found.job.nodes == WORKERS // 8
    return found


def formulas(plan: FailurePlan, repetitions: int) -> dict[str, Any]:
    """Simulate the intervals of the formulas and of the plan beside a fine grid, with many repetitions."""
    job = plan.job
    named = {
        "young": young_interval(job.stall_seconds, job.job_mtbf_seconds),
        "daly": daly_interval(job.stall_seconds, job.job_mtbf_seconds),
        "exact": best_interval(job.stall_seconds, job.job_mtbf_seconds),
        "chosen": plan.interval_seconds,
    }
    grid = [named["daly"] * 2 ** (number / 8) for number in range(-24, 25)]
    rows = simulate(
        job, [*named.values(), *grid], seconds=3600 * HOURS, spares=plan.spares, repetitions=repetitions, seed=SEED
    ).rows()  # fmt: skip
    best = max(rows, key=lambda row: row.goodput)
    flat = [row.interval_seconds for row in rows if row.goodput > best.goodput - WITHIN]
    return {
        "best": figures(best), "flat_minutes": [round(min(flat) / 60, 1), round(max(flat) / 60, 1)],
        **{name: figures(row) for name, row in zip(named, rows, strict=False)},
        "closed_form_at_daly": round(named["daly"] / segment(job, named["daly"]), 5),
    }  # fmt: skip


def figures(row: SimulatedGoodput) -> dict[str, float]:
    """Return what a simulation found, with as many digits as mean something."""
    values = {name: value for name, value in asdict(row).items() if name not in ("interval_seconds", "elastic")}
    return {"minutes": round(row.interval_seconds / 60, 2), **{name: round(one, 5) for name, one in values.items()}}


def simulations(plan: FailurePlan) -> dict[str, Any]:
    """Return the goodput of the plan's own simulations, and its standard error in brackets, in percent."""

    def shown(row: SimulatedGoodput) -> str:
        return f"{100 * row.goodput:.2f} ({100 * row.standard_error:.2f})"

    by_spares = {f"{row.spares}, {'elastic' if row.elastic else 'waiting'}": shown(row) for row in plan.by_spares}
    by_interval = {f"{row.interval_seconds / 60:.1f} min": shown(row) for row in plan.intervals}
    return {"spares": plan.spares, "repetitions": plan.repetitions, "by_interval": by_interval, "by_spares": by_spares}


def segment(job: JobFailures, interval: float) -> float:
    """Return the expected time of an interval in a long training that always has enough nodes and saves at once."""
    return expected_seconds(
        interval, interval, stall=job.stall_seconds, mtbf=job.job_mtbf_seconds, recover=job.recover_seconds,
        detect=job.detect_seconds,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20_000)
    options = parser.parse_args()
    table = Table(
        "rate", "checkpoints", "one every", "Young", "Daly", "chosen", "best simulated", "goodput %", "spares"
    )
    results: dict[str, Any] = {}
    seconds = []
    for rate in PUBLISHED:
        for kind, (stall, write) in CHECKPOINTS.items():
            model = FailureModel(
                mtbf_hours=rate.mtbf_hours, checkpoint_seconds=stall, write_seconds=write, source=rate.name
            )  # fmt: skip
            start = time.process_time()
            plan = planned(model)
            seconds.append(time.process_time() - start)
            found = formulas(plan, options.repetitions)
            job_hours = round(plan.job.job_mtbf_seconds / 3600, 2)
            results[f"{rate.name}, {kind}"] = {"job_mtbf_hours": job_hours, **found, "plan": simulations(plan)}
            for name in ("daly", "chosen"):
                assert found[name]["goodput"] > found["best"]["goodput"] - WITHIN, (rate.name, kind, name)
            minutes = [f"{found[name]['minutes']:.1f}" for name in ("young", "daly", "chosen", "best")]
            goodput = " ".join(f"{100 * found[name]['goodput']:.2f}" for name in ("young", "daly", "chosen", "best"))
            every = f"{plan.job.job_mtbf_seconds / 3600:.1f} h"
            table.add_row(rate.name, kind, every, *minutes, goodput, str(plan.spares))
    Console(width=160).print(table)
    print(f"processor time of a plan with its simulations: {max(seconds):.2f} s at most")
    save(
        "failures",
        {
            "workers": WORKERS, "hours": HOURS, "repetitions": options.repetitions, "within": WITHIN,
            "plan_seconds": [round(one, 3) for one in seconds], "cases": results,
        },
        seeds=(SEED,),
    )  # fmt: skip


if __name__ == "__main__":
    main()
