"""The optimizers' steps: equal parameters on all ranks, and gradients that are the mean over all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rueda.check.audit.judge.journals import Journals, Note
from rueda.records.script_check import FAILED, NOT_SEEN, PASSED, WARNING, Verdict

_TOLERANCE = 1e-5  # relative, of parameters that may be computed in another order
_LOCAL = "the ranks average their parameters from time to time instead of their gradients"
_CLOSE = 0.02  # of the factor between final gradients and the mean of local ones


def steps_by_number(journals: Journals) -> list[dict[int, Note]]:
    """Return the steps that every rank has noted, in their order, each by rank."""
    found: dict[tuple[str, int], dict[int, Note]] = {}
    for rank, note in journals.flat("step"):
        found.setdefault((note["optimizer"], note["number"]), {})[rank] = note
    return [ranks for ranks in found.values() if len(ranks) == journals.size]


def judge_updates(journals: Journals) -> Iterator[Verdict]:
    """Judge parameters and gradients."""
    steps = steps_by_number(journals)
    checks = ("different-start", "drift", "gradients-not-averaged", "gradients-summed", "gradients-averaged-twice")
    why = "no optimizer of torch has made a step on every rank"
    if steps and any(note["sharded"] or not _is_replicated(ranks) for ranks in steps for note in ranks.values()):
        why = "the parameters are divided among the ranks"
        steps = [
            ranks for ranks in steps if _is_replicated(ranks) and not any(one["sharded"] for one in ranks.values())
        ]
    if journals.size == 1:
        why, steps = "there is one worker only", []
    if not steps:
        for check in (*checks, "uneven-mean"):
            yield Verdict(check, NOT_SEEN, why)
        return
    exchange = _exchange(steps)
    start = _start(steps)
    yield start
    averages = any(journals.of_kind("averaging")) or _become_equal(steps)
    if any(journals.of_kind("join")):
        yield Verdict("drift", NOT_SEEN, "ranks that have joined early get their parameters at the end")
    elif averages:
        yield Verdict("drift", NOT_SEEN, _LOCAL)
    else:
        yield _drift(steps, start, exchange)
    for check in checks[2:]:
        by_design = averages and exchange.kind == "none"
        yield Verdict(check, NOT_SEEN, _LOCAL) if by_design else _gradients(check, exchange, journals)
    yield _uneven(journals, exchange)


def _is_replicated(ranks: dict[int, Note]) -> bool:
    return len({repr((note["names"], note["shapes"])) for note in ranks.values()}) == 1


def _become_equal(steps: list[dict[int, Note]]) -> bool:
    """Return whether parameters that differ after a step are equal before a later one: the ranks average them."""
    apart: set[str] = set()
    for ranks in sorted(steps, key=lambda one: int(one[0]["number"])):
        first = ranks[0]
        if first["number"] > 1 and first["optimizer"] in apart and _are_equal(ranks, "before"):
            return True
        if first["number"] and not _are_equal(ranks, "parameters"):
            apart.add(first["optimizer"])
    return False


def _are_equal(ranks: dict[int, Note], what: str) -> bool:
    return bool(ranks[0].get(what)) and all(note.get(what) == ranks[0][what] for note in ranks.values())


# Parameters.


def _start(steps: list[dict[int, Note]]) -> Verdict:
    """Judge the parameters before the first step of each optimizer."""
    for ranks in steps:
        if ranks[0]["number"] != 0:
            continue
        found = _difference(ranks)
        if found:
            name, amount, rank = found
            return Verdict(
                "different-start", FAILED,
                f"{name} of rank {rank} differs from rank 0's at the first step, by up to {amount:.2g}",
                (ranks[0]["where"],),
                "start all ranks with rank 0's parameters: wrap the model in DistributedDataParallel, broadcast them, "
                "or set the same seed before the model is made",
            )  # fmt: skip
    return Verdict("different-start", PASSED)


def _drift(steps: list[dict[int, Note]], start: Verdict, exchange: _Exchange) -> Verdict:
    if start.status == FAILED:
        return Verdict("drift", NOT_SEEN, "the parameters differ from the start")
    if exchange.kind == "none" and exchange.is_certain:
        return Verdict("drift", NOT_SEEN, "the gradients are not averaged, which has a check of its own")
    for ranks in steps:
        found = _difference(ranks)
        if found:
            name, amount, rank = found
            return Verdict(
                "drift", FAILED,
                f"{name} of rank {rank} has drifted from rank 0's at step {ranks[0]['number']}, by up to {amount:.2g}",
                (ranks[0]["where"],),
                "let all ranks make the same update: the same averaged gradient, rate, clipping and optimizer state",
            )  # fmt: skip
    return Verdict("drift", PASSED)


def _difference(ranks: dict[int, Note]) -> tuple[str, float, int] | None:
    """Return a parameter that differs from rank 0's, by how much, and on which rank."""
    first = ranks[0]
    for rank, note in ranks.items():
        if note["parameters"] == first["parameters"]:
            continue
        for i, (ours, others) in enumerate(zip(first["parameters"], note["parameters"], strict=True)):
            if ours == others:
                continue
            pairs = list(zip(first["values"][i], note["values"][i], strict=True))
            largest = max((abs(a) for pair in pairs for a in pair), default=0.0)
            amount = max((abs(a - b) for a, b in pairs), default=0.0)
            if not pairs or amount > _TOLERANCE * largest or math.isnan(amount):
                return first["names"][i], amount, rank
    return None


# Gradients.


class _Exchange:
    """What the exchange of gradients does: ``mean``, ``sum``, ``mean twice``, ``none`` or unknown (empty)."""

    def __init__(self) -> None:
        self.kind, self.factor, self.step, self.rank = "", math.nan, 0, 0
        self.where = ""
        self.is_certain = False


def _exchange(steps: list[dict[int, Note]]) -> _Exchange:
    found = _Exchange()
    for ranks in steps:
        local = {rank: _vector(note["local"], note["scale"]) for rank, note in ranks.items()}
        final = {rank: _vector(note["final"], 1.0) for rank, note in ranks.items()}
        keys = set.intersection(*(set(one) for one in (*local.values(), *final.values())))
        if not keys:
            continue
        kind, factor, certain = _classify(
            [[x for key in sorted(keys) for x in local[rank][key]] for rank in sorted(ranks)],
            [[x for key in sorted(keys) for x in final[rank][key]] for rank in sorted(ranks)],
        )
        is_better = not found.kind or (certain and not found.is_certain)
        is_missing = kind == "none" and certain and found.kind != "none"  # of one optimizer of several
        if kind and (is_better or is_missing):
            found.kind, found.factor, found.is_certain = kind, factor, certain
            found.step, found.where = ranks[0]["number"], ranks[0]["where"]
    return found


def _vector(gradients: dict[str, list[float]], scale: float) -> dict[str, list[float]]:
    return {key: [value / scale for value in values] for key, values in gradients.items()}


def _classify(local: list[list[float]], final: list[list[float]]) -> tuple[str, float, bool]:
    """Compare final gradients with local ones: the kind of the exchange, the factor, and whether it is certain.

    >>> _classify([[1.0, 2.0], [3.0, 0.0]], [[2.0, 1.0], [2.0, 1.0]])
    ('mean', 1.0, True)
    >>> _classify([[1.0, 2.0], [3.0, 0.0]], [[4.0, 2.0], [4.0, 2.0]])[0]
    'sum'
    >>> _classify([[1.0, 2.0], [3.0, 0.0]], [[1.0, 2.0], [3.0, 0.0]])[0]
    'none'
    """
    size = len(local)
    mean = [sum(values) / size for values in zip(*local, strict=True)]
    square = sum(value * value for value in mean)
    if not all(math.isfinite(value) for values in (*local, *final) for value in values):
        return "", math.nan, False
    differ = max(_distance(one, local[0]) for one in local) > 1e-3
    if differ and all(_distance(ours, theirs) < 1e-3 for ours, theirs in zip(local, final, strict=True)):
        return "none", 1.0, True
    if square == 0 or max(_distance(one, final[0]) for one in final) > 1e-3:
        return "", math.nan, False
    factor = sum(a * b for a, b in zip(mean, final[0], strict=True)) / square
    if _distance([factor * value for value in mean], final[0]) > 0.05:
        return "", factor, False  # something else than a multiple of the mean
    for kind, expected in (("mean", 1.0), ("sum", size), ("mean twice", 1 / size)):
        if abs(factor / expected - 1) < _CLOSE:
            return kind, factor, differ or kind != "mean"
    return "", factor, False


def _distance(ours: list[float], others: list[float]) -> float:
    """Return the distance of two vectors, relative to the longer one."""
    longest = max(math.hypot(*ours), math.hypot(*others))
    return math.dist(ours, others) / longest if longest else 0.0


def _gradients(check: str, exchange: _Exchange, journals: Journals) -> Verdict:
    """Judge the factor of the exchange together with that of the loss.

    A script may divide its loss by the number of ranks and sum the gradients, which is right, or divide the loss and
    average the gradients, which is not. With *k* backward passes for each step the loss is divided by *k*, too.
    """
    if not exchange.kind:
        return Verdict(check, NOT_SEEN, "local and exchanged gradients could not be compared")
    size = journals.size
    if check == "gradients-not-averaged":
        if exchange.kind != "none":
            return Verdict(check, PASSED)
        what = f"at step {exchange.step} each rank updates with its own gradient alone: {size} separate trainings"
        cure = "wrap the model in DistributedDataParallel, or all-reduce every gradient before the step"
        return Verdict(check, FAILED, what, (exchange.where,), cure)
    if exchange.kind == "none":
        return Verdict(check, NOT_SEEN, "the gradients are not exchanged")
    scale = _loss_scale(journals)
    if scale is None and exchange.kind != "mean twice":
        if exchange.kind == "mean":
            return Verdict(check, PASSED)
        return Verdict(check, NOT_SEEN, "gradients are summed; whether the loss is a mean was not seen")
    factor = exchange.factor * (scale if scale is not None else 1.0)
    if check == "gradients-summed" and abs(factor / size - 1) < _CLOSE:
        what = (
            f"the gradients are {size} times the mean over the ranks: they are summed, as if the rate were {size}-fold"
        )
        return Verdict(check, FAILED, what, (exchange.where,), f"divide the sum by the number of ranks ({size})")
    if check == "gradients-averaged-twice" and abs(factor * size - 1) < _CLOSE:
        what = f"the gradients are 1/{size} of the mean over the ranks: they are divided twice"
        cure = "leave out the division: DistributedDataParallel and Horovod average already"
        return Verdict(check, FAILED, what, (exchange.where,), cure)
    return Verdict(check, PASSED)


def _loss_scale(journals: Journals) -> float | None:
    """Return the factor between the loss and the mean of a rank's examples, of all passes of a step together.

    None if it was not seen: a loss that is not one plain mean of torch's loss functions.
    """
    passes = [note for _, note in journals.flat("backward")]
    per_step: dict[tuple[int, int], list[Note]] = {}
    for rank, notes in enumerate(journals.of_kind("backward")):
        for note in notes:
            per_step.setdefault((rank, note["step"]), []).append(note)
    if not passes or not all(_is_plain(note) for note in passes):
        return None
    sums = [sum(note["value"] / note["losses"][0][3] for note in notes) for notes in per_step.values()]
    middle = sorted(sums)[len(sums) // 2]
    return middle if all(abs(one - middle) < 1e-3 * abs(middle) for one in sums[:-1] or sums) else None


def _is_plain(note: Note) -> bool:
    losses: list[Any] = note["losses"]
    return len(losses) == 1 and losses[0][1] == "mean" and bool(losses[0][3])


def _uneven(journals: Journals, exchange: _Exchange) -> Verdict:
    """Judge means over different numbers of examples or tokens, which are then averaged with equal weights."""
    check = "uneven-mean"
    per_rank = journals.of_kind("backward")
    if exchange.kind != "mean" or not all(per_rank):
        return Verdict(check, NOT_SEEN, "no averaged gradient of a loss function of torch was seen")
    seen = False
    for passes in zip(*per_rank, strict=False):
        losses = [note["losses"] for note in passes]
        if any(len(one) != 1 or one[0][1] != "mean" or not one[0][3] for one in losses):
            continue
        seen = True
        counts = [one[0][2] for one in losses]
        ratios = [note["value"] / one[0][3] for note, one in zip(passes, losses, strict=True)]
        is_plain = max(ratios) - min(ratios) < 1e-4 * max(map(abs, ratios))
        if len(set(counts)) > 1 and is_plain:
            low, high = min(counts), max(counts)
            return Verdict(
                check, WARNING,
                f"the loss is a mean over {low:,} targets on rank {counts.index(low)} and over {high:,} on rank "
                f"{counts.index(high)}, and both count alike: a target of the first weighs {high / low:.2g} times as "
                "much",
                tuple(dict.fromkeys([passes[0]["where"], exchange.where])),
                "divide the sum of the losses by the number of targets of all ranks, times the number of ranks",
            )  # fmt: skip
    if seen:
        return Verdict(check, PASSED)
    return Verdict(check, NOT_SEEN, "the losses are no plain means of torch's loss functions")
