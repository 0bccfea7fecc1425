"""Criteria, points and reasons: what a submission gets, and why.

================  ======  ==================================================================================
runs                 10   the script ends by itself, without an error, and saves epochs that can be loaded
distributed          30   all workers train one model: own examples, gradients averaged
accuracy             30   the target, in consecutive epochs, on examples that only the grader has
time                 20   the last of these epochs is saved within the time
correct              10   ``rueda check`` finds no other mistake
own-model          cond.  the saved weights were computed by this training, from random ones
task-data          cond.  the training examples are the task's
validation         cond.  validation examples were not trained on
untouched          cond.  the observation and torch were left alone
================  ======  ==================================================================================

The last four are conditions: if one is broken, the submission gets no points, since nothing else can be relied on.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

from rueda.assess.evaluation import EvaluationAnswer
from rueda.assess.running import RunAnswer
from rueda.assess.settings import MOST_BYTES, MOST_PACKED, PREPARATION, PREPARATION_COMPUTING, Settings
from rueda.records.assessment import FAILED, NOT_REACHED, PASSED, Criterion, SavedEpoch
from rueda.records.script_check import ADVICE, WARNING, Verdict
from rueda.records.script_check import FAILED as MISTAKE
from rueda.records.script_check import PASSED as RIGHT
from rueda.terminal.numbers import percent

_QUESTIONS = {
    "runs": ("it ends by itself and saves epochs", 10),
    "distributed": ("all workers train one model, each on its own examples", 30),
    "accuracy": ("the target is reached in consecutive epochs", 30),
    "time": ("in time, as the grader measures it", 20),
    "correct": ("rueda check finds no other mistake", 10),
    "own-model": ("the saved weights come from this training", 0),
    "task-data": ("it trains on the task's training examples", 0),
    "validation": ("it does not train on validation examples", 0),
    "untouched": ("the observation and torch are left alone", 0),
}
_SHARING = (
    *("gradients-not-averaged", "same-batches", "different-start", "drift", "repeated-stream", "overlapping-data"),
    "different-collectives",
)
"""the checks on which `distributed` depends"""
_CHANCE = 0.3  # accuracy that random weights do not reach
_SPLIT = 0.02  # by which the given validation examples may be easier than the grader's own
_FALSE_ACCUSATION = 1e-6  # probability, for a script that has not trained on validation examples


class Grades:
    """Collects the criteria of a submission."""

    def __init__(self) -> None:
        self.criteria: list[Criterion] = []

    def add(self, name: str, reason: str, *, met: bool) -> None:
        """Add a criterion that was judged."""
        question, most = _QUESTIONS[name]
        self.criteria.append(Criterion(name, question, PASSED if met else FAILED, most if met else 0, most, reason))

    def skip(self, *names: str, reason: str) -> None:
        """Add criteria for which nothing was left to judge."""
        for name in names:
            question, most = _QUESTIONS[name]
            self.criteria.append(Criterion(name, question, NOT_REACHED, 0, most, reason))

    @property
    def passed(self) -> bool:
        """Whether every criterion is met."""
        return all(one.status == PASSED for one in self.criteria)

    @property
    def points(self) -> float:
        """The points; none if a condition is broken."""
        broken = any(one.most == 0 and one.status == FAILED for one in self.criteria)
        return 0.0 if broken else sum(one.points for one in self.criteria)


def grade_too_large(text: bytes) -> Grades | None:
    """Grade a script that is not run, since it is too large to be one; None: it is not."""
    packed = len(zlib.compress(text, 9))
    if len(text) <= MOST_BYTES and packed <= MOST_PACKED:
        return None
    grades = Grades()
    much = f"{len(text):,} bytes, more than {MOST_BYTES:,}"
    if len(text) <= MOST_BYTES:
        much = f"{packed:,} bytes when compressed, more than {MOST_PACKED:,}"
    reason = f"the script has {much}: a trained model could be hidden in it"
    grades.add("own-model", reason, met=False)
    grades.skip(*(name for name in _QUESTIONS if name != "own-model"), reason="it was not run")
    return grades


def grade(settings: Settings, run: RunAnswer, found: EvaluationAnswer, claimed: float | None) -> Grades:
    """Grade what was observed.

    Args:
        settings: what is asked for.
        run: the run.
        found: the evaluation.
        claimed: the highest accuracy that the script has printed, if any.
    """
    grades = Grades()
    _runs(grades, run, found)
    _distributed(grades, settings, run.checks, found)
    reached = _accuracy(grades, settings, run.checks, found, claimed)
    _time(grades, settings, run, found, reached)
    wrong = [one for one in run.checks if one.status == MISTAKE and one.check not in _SHARING]
    grades.add(
        "correct", "; ".join(map(_told, wrong)) or "no other mistake was found", met=bool(run.checks) and not wrong
    )
    _own_model(grades, found)
    _data(grades, found)
    touched = "; ".join(run.touched[:3])
    grades.add(
        "untouched",
        f"the script has touched what observes it: {touched}" if touched else "nothing was changed",
        met=not touched,
    )
    return grades


def _runs(grades: Grades, run: RunAnswer, found: EvaluationAnswer) -> None:
    if run.stopped:
        grades.add("runs", f"the grader has ended it: {run.stopped}", met=False)
    elif run.status:
        grades.add("runs", f"the script has failed: {run.error or f'status {run.status}'}", met=False)
    elif not found.epochs:
        others = f", found {', '.join(found.others)}" if found.others else ""
        grades.add("runs", f"no epoch was saved: expected epoch-1.pt, epoch-2.pt, ...{others}", met=False)
    else:
        grades.add("runs", f"{len(found.epochs)} epochs were saved", met=True)


def _distributed(grades: Grades, settings: Settings, checks: Sequence[Verdict], found: EvaluationAnswer) -> None:
    by_name = {one.check: one for one in checks}
    wrong = [by_name[name] for name in _SHARING if name in by_name and by_name[name].status == MISTAKE]
    averaged = by_name.get("gradients-not-averaged")
    trained = [steps for steps in found.steps if steps]
    if len(trained) < settings.workers:
        met, reason = False, f"{len(trained)} of {settings.workers} workers have trained"
    elif wrong:
        met, reason = False, "; ".join(map(_told, wrong[:2]))
    elif averaged is None or averaged.status != RIGHT:
        met, reason = False, f"an exchange of gradients was not seen: {averaged.what if averaged else 'no steps'}"
    elif found.provenance.shared > 0.2:
        met, reason = False, f"workers share {percent(found.provenance.shared, places=0)} of their examples"
    else:
        met, reason = True, f"{settings.workers} workers, own examples, gradients averaged"
    grades.add("distributed", reason, met=met)


def _accuracy(
    grades: Grades, settings: Settings, checks: Sequence[Verdict], found: EvaluationAnswer, claimed: float | None
) -> list[SavedEpoch]:
    """Judge the accuracy; return the consecutive epochs that reach the target, if there are any."""
    target, patience = settings.target_accuracy, settings.patience
    by_number = {one.epoch: one for one in found.epochs if not one.note}
    reached: list[SavedEpoch] = []
    for last in sorted(by_number):
        row = [by_number[number] for number in range(last - patience + 1, last + 1) if number in by_number]
        if len(row) == patience and all(one.accuracy >= target for one in row):
            reached = row
            break
    if reached:
        values = ", ".join(f"epoch {one.epoch}: {percent(one.accuracy)}" for one in reached)
        grades.add("accuracy", values, met=True)
        return reached
    uncounted = [one for one in found.epochs if one.note]
    best = max(found.epochs, key=lambda one: (one.accuracy, not one.note), default=None)
    if best is None:
        grades.skip("accuracy", reason="no epoch was saved")
        return []
    reason = f"{percent(target)} in {patience} consecutive epochs was asked for, "
    reason += f"the best is {percent(best.accuracy)} in epoch {best.epoch}" if best.accuracy else "none was reached"
    if missing := sorted(set(range(1, max(by_number, default=1))) - {one.epoch for one in found.epochs}):
        reason += f"; epoch-{missing[0]}.pt is missing"
    if uncounted:
        reason += f"; epoch-{uncounted[0].epoch}.pt does not count: {uncounted[0].note}"
    if claimed is not None and claimed >= target and best.accuracy < target - 0.02:
        reason += f"; the script has printed {percent(claimed)}, but only what the grader computes counts"
    hints = [one for one in checks if one.check in ("unscaled-rate", "no-warmup") and one.status in (WARNING, ADVICE)]
    if hints and best.accuracy < target:
        reason += f"; {_told(hints[0])}"
    grades.add("accuracy", reason, met=False)
    return []


def _time(
    grades: Grades, settings: Settings, run: RunAnswer, found: EvaluationAnswer, reached: Sequence[SavedEpoch]
) -> None:
    late = max(0.0, found.preparation - PREPARATION, found.preparation_computing - PREPARATION_COMPUTING)
    asked = f"{settings.within:g} s were allowed"
    busy = f"the workers computed in {percent(found.computing, places=0)} of the time"
    if not reached and run.stopped:
        grades.add("time", f"{asked}, but {run.stopped}; {busy}", met=False)
        return
    if not reached:
        grades.skip("time", reason="the target was not reached")
        return
    seconds = reached[-1].seconds + late
    allowed = f"{PREPARATION:g} s, or beyond {PREPARATION_COMPUTING:g} s of computing in it"
    more = f", with {late:.1f} s of preparation beyond {allowed}" if late else ""
    if seconds > settings.within:
        grades.add("time", f"{seconds:.1f} s{more}, {asked}; {busy}", met=False)
    else:
        grades.add("time", f"{seconds:.1f} s{more} from the first step to epoch {reached[-1].epoch}", met=True)


def _own_model(grades: Grades, found: EvaluationAnswer) -> None:
    strange = [one for one in found.epochs if one.note.startswith(("its weights are not", "it is not the task's"))]
    if strange:
        reason = f"epoch-{strange[0].epoch}.pt: {strange[0].note}"
    elif found.initial > _CHANCE:
        reason = (
            f"before the first step the model was right on {percent(found.initial)} already, which random weights "
            "are not"
        )
    elif found.strange:
        reason = f"before the first step, {found.strange}: the model was not new"
    elif found.num_changes:
        reason = f"weights were changed {found.num_changes:,} times between the steps of the optimizer"
    elif not found.epochs:
        grades.skip("own-model", reason="no epoch was saved")
        return
    else:
        grades.add("own-model", f"random weights ({percent(found.initial)} right) before the first step", met=True)
        return
    grades.add("own-model", reason, met=False)


def _data(grades: Grades, found: EvaluationAnswer) -> None:
    seen = found.provenance
    if not seen.examples and any(found.steps):
        grades.add("task-data", "optimizers made steps, but no layer was seen to read a training example", met=False)
        grades.skip("validation", reason="no training example was seen")
        return
    if not seen.examples:
        grades.skip("task-data", "validation", reason="no training was seen")
        return
    strange = seen.unknown > 0.25
    reason = (
        f"{percent(seen.unknown, places=0)} of the {seen.examples:,} training examples are not the task's, not even "
        "changed ones"
        if strange else f"{percent(seen.train, places=0)} of {seen.examples:,} examples are the task's"
    )  # fmt: skip
    grades.add("task-data", reason, met=not strange)
    better = _better_on_validation(found)
    if seen.validation > 0.01:
        reason = f"{percent(seen.validation)} of the training examples are validation examples"
        grades.add("validation", reason, met=False)
    elif better is not None:
        reason = f"epoch {better.epoch} is right on {percent(better.public)} of the validation examples and on "
        reason += f"{percent(better.accuracy)} of the grader's own, more than chance explains (once in a million "
        reason += "scripts)"
        grades.add("validation", reason, met=False)
    else:
        grades.add("validation", "none was trained on", met=True)


def _better_on_validation(found: EvaluationAnswer) -> SavedEpoch | None:
    """Return an epoch that is better on validation examples than chance explains; None: there is none.

    Fisher's exact test: if a model treats both sets alike, those on which it is right are dealt out to the two sets
    by a hypergeometric distribution. Two points in a hundred are granted first, since a set's own split may be a little
    easier than its test examples; with ``k`` epochs, each is tested at a ``k``-th of the level (Bonferroni).
    """
    from scipy.stats import hypergeom

    num_validation, num_own = found.num_validation, found.num_held_out
    for one in found.epochs:
        right = math.floor((one.public - _SPLIT) * num_validation)
        right_own = round(one.accuracy * num_own)
        if right <= 0:
            continue
        chance = hypergeom.sf(right - 1, num_validation + num_own, right + right_own, num_validation)
        if chance < _FALSE_ACCUSATION / len(found.epochs):
            return one
    return None


def _told(verdict: Verdict) -> str:
    where = f" ({', '.join(verdict.where)})" if verdict.where else ""
    return f"{verdict.check}: {verdict.what}{where}"
