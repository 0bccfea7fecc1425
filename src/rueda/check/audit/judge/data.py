"""Which data the ranks train on: a part each, all of it together, in another order each epoch.

The indices of two ranks are compared where they mean the same examples: at the outermost data set that is the same on
all ranks. If each rank has a data set of its own, indices mean nothing between them, and the contents of the first
batches decide.
"""

from __future__ import annotations

from collections.abc import Iterator

from rueda.check.audit.judge.journals import Epoch, Journals
from rueda.check.audit.judge.updates import steps_by_number
from rueda.records.script_check import FAILED, NOT_SEEN, PASSED, Verdict

_DISTRIBUTED = "DistributedSampler"
_STEPS = 3  # whose gradients must be equal


def judge_data(journals: Journals) -> Iterator[Verdict]:
    """Judge the data of the training loops."""
    epochs = list(journals.whole_epochs(training=True))
    maps = [ranks for ranks in epochs if not ranks[0].note["stream"]]
    streams = [ranks for ranks in epochs if ranks[0].note["stream"]]
    unseen = "no training loop over a DataLoader was seen on every rank"
    if journals.size == 1:
        for check in ("same-batches", "overlapping-data", "skipped-data", "repeated-stream"):
            yield Verdict(check, NOT_SEEN, "there is one worker only")
    else:
        same = _same_batches(maps) if maps else Verdict("same-batches", NOT_SEEN, unseen)
        if same.status == NOT_SEEN and not streams:  # which have a check of their own
            same = _same_gradients(journals) or same
        yield same
        shared = [(ranks, level) for ranks in maps if (level := common_level(ranks)) is not None]
        complete = [(ranks, level) for ranks, level in shared if _is_complete(ranks)]
        why = unseen if not maps else "each rank has a data set of its own"
        overlap = _overlap(shared) if shared else Verdict("overlapping-data", NOT_SEEN, why)
        yield overlap
        why = why if not shared else "no epoch has ended, or the sampler draws a number of examples of its own"
        if FAILED in (same.status, overlap.status):
            yield Verdict("skipped-data", NOT_SEEN, "ranks read the same examples, so that others may be missing")
        else:
            yield _skipped(complete, journals) if complete else _doubly_sharded(maps, journals, why)
        yield _streams(streams) if streams else Verdict("repeated-stream", NOT_SEEN, "no IterableDataset was read")
    yield _same_order(journals)


def common_level(ranks: dict[int, Epoch]) -> int | None:
    """Return the outermost level of ``Subset`` at which all ranks have the same data set; None if there is none.

    0 is the data set of the loader itself. The base below all Subsets is compared by its kind, length and tensors.
    """
    epochs = list(ranks.values())
    first = epochs[0]
    if any(
        one.note["base"] != first.note["base"] or one.note["length"] != first.note["length"] for one in epochs
    ) or any(len(one.levels) != len(first.levels) for one in epochs):
        return None
    for level in range(len(first.levels) + 1):
        if all(one.levels[level:] == first.levels[level:] for one in epochs):
            return level
    return None


def universe(epoch: Epoch, level: int) -> set[int]:
    """Return all indices of the data set of a level."""
    return set(epoch.levels[level]) if level < len(epoch.levels) else set(range(epoch.note["length"]))


def resolved(epoch: Epoch, level: int) -> list[int]:
    """Return the indices that an epoch has read, as those below a level, so that they are comparable with others."""
    return epoch.resolved(min(level + 1, len(epoch.levels)))


def _same_batches(epochs: list[dict[int, Epoch]]) -> Verdict:
    passed = False
    for ranks in epochs:
        for first, second in _pairs(ranks):
            if not first.indices or not second.indices:
                continue
            passed = True
            count = min(len(first.indices), len(second.indices))
            same_indices = first.resolved(len(first.levels))[:count] == second.resolved(len(second.levels))[:count]
            if same_indices and _same_contents(first, second):
                return Verdict(
                    "same-batches", FAILED,
                    f"ranks {first.rank} and {second.rank} read the same examples in the same order "
                    f"({count:,} in epoch {first.note['number'] + 1}): both compute the same gradients, so the second "
                    "worker adds nothing",
                    (first.note["made"],),
                    "divide the data: sampler=DistributedSampler(dataset) with set_epoch(epoch), instead of shuffle",
                )  # fmt: skip
    if passed:
        return Verdict("same-batches", PASSED)
    return Verdict("same-batches", NOT_SEEN, "the loaders have samplers without indices")


def _same_gradients(journals: Journals) -> Verdict | None:
    """Judge data that come from no DataLoader: ranks whose own gradients are equal train on the same examples."""
    noted = [ranks for ranks in steps_by_number(journals) if ranks[0]["number"]]
    steps = [ranks for ranks in noted if all(note["local"] for note in ranks.values())]
    if len(steps) < _STEPS:
        return None
    for ranks in steps:
        first = ranks[0]["local"]
        is_zero = not any(any(values) for values in first.values())
        if is_zero or any(note["local"] != first or note["sharded"] for note in ranks.values()):
            return None
    return Verdict(
        "same-batches", FAILED,
        f"all ranks compute the same gradients before they exchange them ({len(steps)} steps compared): they train on "
        "the same examples, so further workers add nothing",
        (steps[0][0]["where"],), "give each rank examples of its own, such as indices[rank::size]",
    )  # fmt: skip


def _same_contents(first: Epoch, second: Epoch) -> bool:
    """Return whether the first batches hold the same examples; augmented ones have the same labels.

    Without labels, examples that differ may be augmented ones; then the data sets themselves decide.
    """
    ours, others = first.note["contents"], second.note["contents"]
    if ours == others:
        return True
    ours, others = first.note["labels"], second.note["labels"]
    same_base = first.note["base"] == second.note["base"] and first.note["length"] == second.note["length"]
    if any(ours) or any(others):
        return bool(ours == others) and same_base
    return same_base and " (" in first.note["base"]  # a data set whose tensors are known, and equal


def _overlap(epochs: list[tuple[dict[int, Epoch], int]]) -> Verdict:
    for ranks, level in epochs:
        repeats = any(one.note["replaces"] or len(set(one.indices)) < len(one.indices) for one in ranks.values())
        if repeats and ranks[0].note["sampler"] != _DISTRIBUTED:
            continue  # drawn with replacement
        for first, second in _pairs(ranks):
            ours, others = resolved(first, level), resolved(second, level)
            common = set(ours) & set(others)
            if ours == others and _same_contents(first, second):
                continue  # the same batches, which has a check of its own
            if len(common) > _padding(first, len(ranks)):
                if not _same_where_common(first, second, level):
                    continue
                share = len(common) / len(set(ours))
                if 0.9 * _expected_overlap(first, second, level) < len(common) and _draws_alone(first):
                    what = (
                        f"ranks {first.rank} and {second.rank} draw from all examples independently: "
                        f"{len(common):,} of {len(set(ours)):,} are read by both in epoch {first.note['number'] + 1}"
                    )
                else:
                    what = (
                        f"{len(common):,} of the {len(set(ours)):,} examples of rank {first.rank} are read by rank "
                        f"{second.rank}, too ({share:.0%})"
                    )
                cure = "give each rank indices of its own: DistributedSampler(dataset), or range(rank, n, size)"
                return Verdict("overlapping-data", FAILED, what, (first.note["made"],), cure)
    return Verdict("overlapping-data", PASSED)


def _draws_alone(epoch: Epoch) -> bool:
    return bool(epoch.note["sampler"] == "RandomSampler")


def _expected_overlap(first: Epoch, second: Epoch, level: int) -> float:
    whole = max(1, len(universe(first, level)))
    return len(set(first.indices)) * len(set(second.indices)) / whole


def _same_where_common(first: Epoch, second: Epoch, level: int) -> bool:
    """Return whether an index means the same example on both ranks, as far as the digested batches show it."""
    ours, others = _labelled(first, level), _labelled(second, level)
    common = ours.keys() & others.keys()
    return not common or sum(ours[one] == others[one] for one in common) >= 0.9 * len(common)


def _labelled(epoch: Epoch, level: int) -> dict[int, int]:
    """Return the digest of each example's labels, or of its contents if it has none, by its index."""
    note = epoch.note
    rows = note["labels"] if any(note["labels"]) else note["contents"]
    digests = [one for batch in rows for one in batch]
    return dict(zip(resolved(epoch, level), digests, strict=False))


def _padding(epoch: Epoch, size: int) -> int:
    """Return how many examples may be read twice so that all ranks have equally many."""
    if "Shard" in epoch.note["batch_sampler"]:  # Accelerate fills the last batch of every rank
        return size * (epoch.note["batch_size"] or max(epoch.rows, default=1))
    return size - 1


def _skipped(epochs: list[tuple[dict[int, Epoch], int]], journals: Journals) -> Verdict:
    for ranks, level in epochs:
        first = ranks[0]
        everything = universe(first, level)
        seen = {below for one in ranks.values() for below in resolved(one, level)}
        elsewhere = _read_elsewhere(first, journals)
        missing = len(everything - seen - (elsewhere if level >= len(first.levels) else set()))
        rows = max((max(one.rows, default=0) for one in ranks.values()), default=0)
        allowed = len(ranks) * max(rows, 1) if first.note["drop_last"] else len(ranks) - 1
        if missing > allowed:
            made = first.note["made"]
            return Verdict(
                "skipped-data", FAILED,
                f"{missing:,} of {len(everything):,} training examples are read by no rank in epoch "
                f"{first.note['number'] + 1}",
                (made,), "divide the data once: a DistributedSampler over the whole data set, not over a part of it",
            )  # fmt: skip
    return Verdict("skipped-data", PASSED)


def _doubly_sharded(epochs: list[dict[int, Epoch]], journals: Journals, why: str) -> Verdict:
    """Judge data sets that differ between the ranks: what a rank does not read of its own, no other rank can read."""
    for ranks in epochs:
        if not _is_complete(ranks) or len({one.note["base"] for one in ranks.values()}) == 1:
            continue
        for rank, one in ranks.items():
            read = set(one.resolved(len(one.levels)))
            missing = set(range(one.note["length"])) - read - _read_elsewhere(one, journals)
            if len(missing) > max(one.note["length"] // 10, *one.rows):
                return Verdict(
                    "skipped-data", FAILED,
                    f"rank {rank} has a data set of its own, of which it reads {len(read):,} of "
                    f"{one.note['length']:,} examples: the rest is read by no rank",
                    (one.note["made"],), "divide the data once: into data sets of the ranks, or by a sampler, not both",
                )  # fmt: skip
    return Verdict("skipped-data", NOT_SEEN, why)


def _read_elsewhere(first: Epoch, journals: Journals) -> set[int]:
    """Return the examples of the same base that other loaders read, such as those for validation."""
    found: set[int] = set()
    for ranks in journals.epochs.values():
        for one in ranks.values():
            if one.note["loader"] != first.note["loader"] and one.note["base"] == first.note["base"]:
                found.update(one.resolved(len(one.levels)))
    return found


def _is_complete(ranks: dict[int, Epoch]) -> bool:
    return all(
        one.note["complete"] and one.note["whole"] and not one.note["limited"] and not one.note["replaces"]
        for one in ranks.values()
    )


def _same_order(journals: Journals) -> Verdict:
    seen = False
    for (loader, number), ranks in journals.epochs.items():
        for rank, epoch in ranks.items():
            before = _epoch_before(epoch, loader, number, journals)
            if before is None or not (epoch.trains and before.trains) or epoch.note["stream"]:
                continue
            count = min(len(epoch.indices), len(before.indices))
            if count < 8 or not before.note["complete"]:
                continue
            seen = True
            order = list(epoch.indices[:count])
            if order == list(before.indices[:count]) and order != sorted(order):
                cure = "give the loader another seed in each epoch"
                if epoch.note["sampler"] == _DISTRIBUTED:
                    cure = "call sampler.set_epoch(epoch) at the beginning of each epoch"
                return Verdict(
                    "same-order", FAILED,
                    f"rank {rank} reads the {count:,} examples of {_both(loader, number)} in the same shuffled order",
                    (epoch.note["made"],), cure,
                )  # fmt: skip
    if seen:
        return Verdict("same-order", PASSED)
    return Verdict("same-order", NOT_SEEN, "no training loop has read two epochs of a DataLoader")


def _both(loader: str, number: int) -> str:
    if number:
        return f"epochs {number} and {number + 1}"
    count = int(loader.rpartition("#")[2])
    return f"the loaders {count} and {count + 1} that are made here"


def _epoch_before(epoch: Epoch, loader: str, number: int, journals: Journals) -> Epoch | None:
    """Return the epoch before: of the same loader, or of one that was made at the same place in the same training."""
    if number:
        return journals.epochs.get((loader, number - 1), {}).get(epoch.rank)
    place, _, count = loader.rpartition("#")
    before = journals.epochs.get((f"{place}#{int(count or 0) - 1}", 0), {}).get(epoch.rank)
    if before is None or before.note.get("optimizers") != epoch.note.get("optimizers"):
        return None  # another training, which may begin alike
    return before if before.note["base"] == epoch.note["base"] else None


def _streams(epochs: list[dict[int, Epoch]]) -> Verdict:
    for ranks in epochs:
        for first, second in _pairs(ranks):
            ours = [one for batch in first.note["contents"] for one in batch]
            others = [one for batch in second.note["contents"] for one in batch]
            count = min(len(ours), len(others))
            if count and ours[:count] == others[:count] and len(set(ours[:count])) > 1:
                return Verdict(
                    "repeated-stream", FAILED,
                    f"ranks {first.rank} and {second.rank} read the same examples of an IterableDataset "
                    f"({count:,} compared)",
                    (first.note["made"],), "let each rank take every N-th example: itertools.islice(it, rank, None, N)",
                )  # fmt: skip
    return Verdict("repeated-stream", PASSED)


def _pairs(ranks: dict[int, Epoch]) -> Iterator[tuple[Epoch, Epoch]]:
    """Iterate over rank 0 and each other one, then the rest: a mistake of all ranks is found in the first pair."""
    ordered = [ranks[rank] for rank in sorted(ranks)]
    for i, first in enumerate(ordered):
        for second in ordered[i + 1 :]:
            yield first, second
