"""Evaluation loops: all data is evaluated, every example once, and what is printed is that of all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from rueda.check.audit.judge.data import common_level, resolved, universe
from rueda.check.audit.judge.journals import Epoch, Journals
from rueda.records.script_check import FAILED, NOT_SEEN, PASSED, Verdict


def judge_evaluation(journals: Journals) -> Iterator[Verdict]:
    """Judge the loops over loaders in which no optimizer makes a step."""
    epochs = [
        ranks for ranks in journals.whole_epochs(training=False) if all(one.note["complete"] for one in ranks.values())
    ]
    if not epochs or journals.size == 1:
        why = "there is one worker only" if journals.size == 1 else "no evaluation was seen that all ranks make"
        yield Verdict("shard-as-whole", NOT_SEEN, why)
        yield Verdict("padded-evaluation", NOT_SEEN, why)
        return
    yield _shard(epochs, journals)
    yield _padded(epochs, journals)


def _shard(epochs: list[dict[int, Epoch]], journals: Journals) -> Verdict:
    written = {note["path"] for rank, note in journals.flat("write") if rank}
    through_files = any(note["path"] in written for note in journals.of_kind("read")[0])
    for ranks in epochs:
        first = ranks[0]
        if not _is_divided(ranks) or any(one.note["collectives"] or one.note["backwards"] for one in ranks.values()):
            continue
        if first.note["printed"] and not through_files:
            count = sum(first.rows)
            return Verdict(
                "shard-as-whole", FAILED,
                f"rank 0 evaluates {count:,} examples, a part of the data, prints a number after the loop, and no "
                "rank has exchanged its result",
                (first.note["where"],),
                "all-reduce the sums and the counts over the ranks before they are printed, or evaluate all data",
            )  # fmt: skip
    return Verdict("shard-as-whole", PASSED)


def _is_divided(ranks: dict[int, Epoch]) -> bool:
    """Return whether the ranks read different examples."""
    first = ranks[0]
    if any(list(one.indices) != list(first.indices) for one in ranks.values()):
        level = common_level(ranks)
        return level is None or {*resolved(first, level)} != universe(first, level)
    return any(one.note["contents"] != first.note["contents"] for one in ranks.values()) and any(
        one.note["base"] != first.note["base"] or one.levels != first.levels or first.note["stream"]
        for one in ranks.values()
    )


def _padded(epochs: list[dict[int, Epoch]], journals: Journals) -> Verdict:
    for ranks in epochs:
        level = common_level(ranks)
        first = ranks[0]
        if level is None or first.note["stream"] or not _is_divided(ranks):
            continue
        if any(one.note["replaces"] for one in ranks.values()):
            continue
        read = [one for epoch in ranks.values() for one in resolved(epoch, level)]
        twice = len(read) - len(set(read))
        # Sums count what was added; gathered rows may have lost it again, as gather_for_metrics of Accelerate does.
        gathers = "Shard" in first.note["batch_sampler"] and ".gather_for_metrics(" not in journals.text
        counted = "collectives" if gathers else "all_reduces"
        if twice and all(one.note[counted] for one in ranks.values()):
            return Verdict(
                "padded-evaluation", FAILED,
                f"the ranks evaluate {len(read):,} examples, of which {twice:,} are counted twice: the sampler repeats "
                "some so that all ranks have equally many",
                (first.note["made"],),
                "evaluate Subset(dataset, range(rank, len(dataset), size)), which repeats none, or leave out the "
                "examples that were added",
            )  # fmt: skip
    return Verdict("padded-evaluation", PASSED)
