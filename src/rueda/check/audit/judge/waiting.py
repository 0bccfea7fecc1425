"""Ranks that wait for each other: different numbers of batches, and collectives that one rank never enters."""

from __future__ import annotations

from collections.abc import Iterator

from rueda.check.audit.judge.journals import Journals
from rueda.records.script_check import FAILED, NOT_SEEN, PASSED, Verdict


def judge_waiting(journals: Journals) -> Iterator[Verdict]:
    """Judge the numbers of batches, and the places where ranks wait."""
    counts = _batch_counts(journals)
    yield counts
    if not journals.waiting:
        yield Verdict("different-collectives", PASSED)
    elif counts.status == FAILED:
        yield Verdict("different-collectives", NOT_SEEN, "the ranks wait since they have different numbers of batches")
    else:
        places = tuple(dict.fromkeys(place for place in journals.waiting.values() if place))
        told = "; ".join(f"rank {rank} is at {place or 'its end'}" for rank, place in sorted(journals.waiting.items()))
        yield Verdict(
            "different-collectives", FAILED, f"the ranks wait for each other in vain: {told}", places,
            "let all ranks enter the same collectives in the same order; no collective under `if rank == 0`",
        )  # fmt: skip


def _batch_counts(journals: Journals) -> Verdict:
    check = "different-batch-counts"
    if any(journals.of_kind("join")[0]):
        return Verdict(check, PASSED, "the script joins ranks that have fewer")
    seen = False
    for (_, number), ranks in journals.epochs.items():
        if len(ranks) < journals.size or not any(one.trains for one in ranks.values()):
            continue
        ended = {rank: one.note["batches"] for rank, one in ranks.items() if one.note["complete"]}
        open_ones = {rank: one.note["batches"] for rank, one in ranks.items() if not one.note["complete"]}
        seen = seen or len(ended) == journals.size
        fewest = min(ended.values(), default=None)
        more = {rank: count for rank, count in (ended | open_ones).items() if fewest is not None and count > fewest}
        if fewest is None or not more:
            continue
        rank, count = max(more.items(), key=lambda item: item[1])
        short = min(ended, key=lambda one: ended[one])
        made = ranks[rank].note["made"]
        return Verdict(
            check, FAILED,
            f"in epoch {number + 1} rank {rank} has read {count:,} batches, and rank {short} has only {fewest:,}: rank "
            f"{rank} waits in its next exchange for one that never comes, or meets one of another epoch",
            (made,), "give all ranks equally many batches: drop_last=True, DistributedSampler, or torch's Join context",
        )  # fmt: skip
    if seen:
        return Verdict(check, PASSED)
    return Verdict(check, NOT_SEEN, "no training epoch over a DataLoader has ended on all ranks")
