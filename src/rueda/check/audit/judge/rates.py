"""The learning rate: scaled with the global batch, warmed up, and its schedule stepped once per update.

Whether a rate or a batch size depends on the number of workers is read from the script's text
(:mod:`.provenance`), since a number does not tell where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rueda.check.audit.judge.journals import Journals, Note
from rueda.check.audit.judge.provenance import Provenance
from rueda.check.audit.judge.updates import steps_by_number
from rueda.records.script_check import ADVICE, FAILED, NOT_SEEN, PASSED, Verdict

_MANY = 3  # updates that are needed to see a pattern


def judge_rates(journals: Journals) -> Iterator[Verdict]:
    """Judge the rates and their schedule."""
    steps = [ranks[0] for ranks in steps_by_number(journals) if ranks[0]["number"]]
    yield from _scaling(journals, steps)
    yield _schedule(journals, steps)


def _scaling(journals: Journals, steps: list[Note]) -> Iterator[Verdict]:
    loader = next((ranks[0] for ranks in journals.whole_epochs(training=True)), None)
    text = journals.text
    why = ""
    if journals.size == 1:
        why = "there is one worker only"
    elif not steps or loader is None or not text:
        why = "no training loop over a DataLoader was seen"
    elif not _is_in(steps[0]["made"], journals.script) or not _is_in(loader.note["made"], journals.script):
        why = "the loader or the optimizer is made outside of the script"
    elif not steps[0]["rates"]:
        why = "the optimizer has no learning rate"
    if why:
        yield Verdict("unscaled-rate", NOT_SEEN, why)
        yield Verdict("no-warmup", NOT_SEEN, why)
        return
    assert loader is not None
    source = Provenance(text)
    made = steps[0]["made"]
    line = int(made.rsplit(":", 1)[1])
    batch = max(loader.rows, default=0)
    divided = batch * journals.size <= (loader.note["batch_size"] or 0) + journals.size - 1  # by a sampler of batches
    grows = not divided and not source.depends_on_size(
        "DataLoader", "batch_size", int(loader.note["made"].rsplit(":", 1)[1])
    )
    scaled = source.depends_on_size("", "lr", line) or source.rate_changes_with_size()
    rates = [note["rates"][0] for note in steps if note["optimizer"] == steps[0]["optimizer"] and note["rates"]]
    if grows and not scaled and batch:
        yield Verdict(
            "unscaled-rate", ADVICE,
            f"each rank has batches of {batch:,}, so the global batch is {journals.size * batch:,}, {journals.size} "
            f"times that of one worker; the rate {rates[0]:g} does not depend on the number of workers",
            (made,),
            f"if {rates[0]:g} is right for one worker, begin with {journals.size} times as much and a warm-up (linear "
            f"scaling; with Adam {journals.size ** 0.5:.2g} times), or divide the batch size by the number of workers",
        )  # fmt: skip
    else:
        yield Verdict("unscaled-rate", PASSED)
    if not (grows and scaled):
        yield Verdict("no-warmup", NOT_SEEN, "the rate is not scaled with the number of workers")
    elif len(rates) >= _MANY and max(rates) <= rates[0]:
        yield Verdict(
            "no-warmup", ADVICE,
            f"the rate is scaled with the number of workers, and is {rates[0]:g} from the first step on",
            (made,), "raise it over the first epochs from the rate of one worker, as LinearLR or SequentialLR do",
        )  # fmt: skip
    elif len(rates) >= _MANY:
        yield Verdict("no-warmup", PASSED)
    else:
        yield Verdict("no-warmup", NOT_SEEN, "too few steps were seen")


def _schedule(journals: Journals, steps: list[Note]) -> Verdict:
    scheduled = [note for note in steps if note["scheduled"]]
    if not scheduled:
        return Verdict("schedule-per-worker", NOT_SEEN, "no schedule of torch was stepped")
    counted = [note for note in scheduled if note.get("passes")]
    if counted and all(note["scheduled"] == note["passes"] for note in counted):
        return Verdict("schedule-per-worker", PASSED)  # once per batch, also where several are accumulated
    if journals.size > 1 and all(note["scheduled"] == journals.size for note in scheduled):
        return Verdict(
            "schedule-per-worker", FAILED,
            f"the schedule is stepped {journals.size} times between two updates, once for each worker: it ends "
            f"{journals.size} times too early",
            (scheduled[0]["schedule_place"],), "step it once per update (or per epoch) on every rank",
        )  # fmt: skip
    return Verdict("schedule-per-worker", PASSED)


def _is_in(place: str, script: str) -> bool:
    return bool(place) and Path(place.rsplit(":", 1)[0]).name == Path(script).name
