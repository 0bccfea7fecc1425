"""``make faults``: the campaign of faults, its table, and a status of 1 if an invariant was violated."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from _common import save  # benchmarks/ is on the path
from faults.campaign import run_plan
from faults.outcomes import Outcome
from faults.plan import JOBS, make_plan
from faults.table import RESULTS, result_of, tables

MINUTES = 25.0


def show(one: Outcome) -> None:
    fault = one.fault
    times = [
        f"{seconds:.2f} s" if seconds is not None else "-" for seconds in (one.detected_seconds, one.recovered_seconds)
    ]
    where = f"{one.job}, {fault.kind} ({fault.how}) of {fault.rank} after update {fault.step}"
    print(f"{fault.number:3} {where}: {one.outcome}; noticed {times[0]}, recovered {times[1]}", flush=True)
    for problem in one.problems:
        print(f"    WRONG: {problem}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the plan")
    parser.add_argument("--only", choices=list(JOBS), action="append", help="a kind of job; may be repeated")
    parser.add_argument("--first", type=int, help="so many jobs of each kind")
    parser.add_argument("--save", choices=[file.stem for file in RESULTS], help="what --only has run, in this result")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="after so long no job is begun")
    options = parser.parse_args()
    plan = [job for job in make_plan(options.seed) if not options.only or job.name in options.only]
    if options.first is not None:
        plan = [
            job for job in plan if sum(one.name == job.name and one.number < job.number for one in plan) < options.first
        ]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="rueda-faults-") as folder:
        place = Path(folder)
        outcomes = run_plan(plan, place, seconds=60 * options.minutes, told=show)
        result = result_of(options.seed, outcomes, hidden=str(place))
    print("\n".join(tables(result["faults"])))
    name = options.save or (None if options.only or options.first is not None else RESULTS[0].stem)
    if name is not None:
        save(name, result, seeds=(options.seed,))
    return 1 if any(one.problems for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
