"""The tables of a campaign for docs/faults.md; ``python -m faults.table`` writes them there."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from faults.outcomes import Outcome
from faults.plan import HOWS, JOBS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"
_NAMES = ("faults", "faults_train_elastic_hosts", "faults_train_elastic")
RESULTS = [ROOT / "benchmarks" / "results" / f"{name}.json" for name in _NAMES]
"""the whole campaign, and later runs of kinds of jobs that it did not have; of each kind, the first file counts"""
BEGIN, END = "<!-- made by make faults and python -m faults.table -->", "<!-- end -->"
Record = dict[str, Any]


def result_of(seed: int, outcomes: Sequence[Outcome], *, hidden: str) -> Record:
    """Return what is kept of a campaign; what is 0 or empty in a fault is left out.

    Args:
        seed: of the plan.
        outcomes: what became of the faults.
        hidden: the folder that it ran in, which means nothing elsewhere.
    """
    rows = []
    for one in outcomes:
        row = one.told()
        fault = row.pop("fault")
        row["said"] = " ".join(row["said"].replace(hidden, "...").split())[-240:]
        row["problems"] = [" ".join(text.replace(hidden, "...").split())[:600] for text in row["problems"]]
        rows.append({**{name: value for name, value in fault.items() if value not in ("", 0.0)}, **row})
    return {"plan_seed": seed, "faults": rows}


def stored_faults() -> list[Record]:
    """Return the faults of each kind of job, from the first of the results that has it."""
    rows: list[Record] = []
    for file in RESULTS:
        if file.exists():
            known = {row["job"] for row in rows}
            rows += [row for row in json.loads(file.read_text())["faults"] if row["job"] not in known]
    return rows


def _of(rows: Iterable[Record], name: str) -> list[float]:
    return [row[name] for row in rows if row[name] is not None]


def _seconds(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} / {max(values):.2f}" if values else "–"


def _outcomes(rows: Iterable[Record]) -> str:
    counted = Counter(row["outcome"] for row in rows)
    return "; ".join(f"{number} {words}" for words, number in counted.most_common())


def by_job(rows: Sequence[Record]) -> list[str]:
    """Return a table with one line for each kind of job."""
    lines = [
        "| job | faults | what became of them | recovered, s | examples again | lost | wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, job in JOBS.items():
        if own := [row for row in rows if row["job"] == name]:
            again, lost = (sum(row[what] for row in own) for what in ("again", "lost"))
            wrong, seconds = sum(bool(row["problems"]) for row in own), _seconds(_of(own, "recovered_seconds"))
            lines.append(f"| {job.words} | {len(own)} | {_outcomes(own)} | {seconds} | {again:,} | {lost} | {wrong} |")
    return lines


def by_kind(rows: Sequence[Record]) -> list[str]:
    """Return a table with one line for each kind of fault."""
    families = list(dict.fromkeys(job.family for job in JOBS.values()))
    lines = [f"| fault | {' | '.join(families)} | what became of them |", f"|---|{'---|' * len(families)}---|"]
    for kind in HOWS:
        if own := [row for row in rows if row["kind"] == kind]:
            counts = [sum(JOBS[row["job"]].family == family for row in own) for family in families]
            lines.append(f"| {kind} | {' | '.join(str(count or '–') for count in counts)} | {_outcomes(own)} |")
    return lines


def lost_hosts(rows: Sequence[Record]) -> list[str]:
    """Return a table of the hosts that were lost: when it was noticed, when survivors went on, when all were back."""
    lines = [
        "| job | times | noticed, s | on 2 workers after that, s | on 4 after the host is back, s |",
        "|---|---|---|---|---|",
    ]
    for name, job in JOBS.items():
        for how, words in (("cut", "link cut"), ("crash", "all its processes killed")):
            own = [row for row in rows if row["job"] == name and row["kind"] == "host lost" and row["how"] == how]
            if own:
                later = [
                    row["recovered_seconds"] - row["detected_seconds"]
                    for row in own
                    if row["recovered_seconds"] is not None and row["detected_seconds"] is not None
                ]
                lines.append(
                    f"| {job.words}: {words} | {len(own)} | {_seconds(_of(own, 'detected_seconds'))} "
                    f"| {_seconds(later)} | {_seconds(_of(own, 'full_seconds'))} |"
                )
    return lines


def tables(rows: Sequence[Record]) -> list[str]:
    """Return all tables."""
    wrong = sum(bool(row["problems"]) for row in rows)
    first = f"{len(rows)} faults, of which {wrong or 'none'} violated an invariant; seconds are median / longest."
    return [first, "", *by_job(rows), "", *by_kind(rows), "", *lost_hosts(rows)]


def page_with(text: str, rows: Sequence[Record]) -> str:
    """Return the page with the tables of some faults."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *tables(rows), "", END + after])


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(), stored_faults()))
