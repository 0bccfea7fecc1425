"""Random numbers: dropout and augmentation that are the same on all ranks; and batch norm with few examples."""

from __future__ import annotations

from collections.abc import Iterator

from rueda.check.audit.judge.journals import Journals, Note
from rueda.records.script_check import NOT_SEEN, PASSED, WARNING, Verdict

FEW_EXAMPLES = 8
"""fewer examples than these make a mean and a variance that are mostly noise"""


def judge_randomness(journals: Journals) -> Iterator[Verdict]:
    """Judge draws that must differ between the ranks, and statistics of batch norm."""
    yield _randomness(journals)
    yield _batch_norm(journals)


def _randomness(journals: Journals) -> Verdict:
    check = "same-randomness"
    in_model, in_loader = journals.of_kind("draw"), journals.of_kind("augmentation")
    if journals.size == 1 or not (all(in_model) or all(in_loader)):
        return Verdict(check, NOT_SEEN, "neither dropout nor random augmentation was seen on every rank")
    cure = "after the model is made, seed each rank differently: torch.manual_seed(seed + rank)"
    if all(in_model) and _are_same(in_model):
        what = "the models of all ranks draw the same random numbers, as for dropout: their generators have one state"
        return Verdict(check, WARNING, what, (in_model[0][0]["where"],), cure)
    if all(in_loader) and _are_same(in_loader):
        kinds = ", ".join(sorted({name for note in in_loader[0] for name in note["states"]}))
        what = f"the loaders of all ranks draw the same random numbers ({kinds}), so augmentations are the same"
        return Verdict(check, WARNING, what, (in_loader[0][0]["made"],), cure)
    return Verdict(check, PASSED)


def _are_same(notes: list[list[Note]]) -> bool:
    """Return whether all ranks draw from generators in the same states."""
    drawn = [{(note["number"], *one) for note in rank for one in note["states"].items()} for rank in notes]
    return all(one == drawn[0] for one in drawn)


def _batch_norm(journals: Journals) -> Verdict:
    check = "few-examples-per-statistic"
    notes = journals.flat("batch_norm")
    if not notes:
        return Verdict(check, NOT_SEEN, "no batch norm was seen in training")
    rank, fewest = min(notes, key=lambda one: one[1]["examples"])
    if fewest["examples"] < FEW_EXAMPLES:
        return Verdict(
            check, WARNING,
            f"batch norm on rank {rank} computes its statistics from {fewest['examples']} examples, since each rank "
            "uses its own batch",
            (fewest["where"],),
            "synchronise the statistics (SyncBatchNorm), enlarge the batch of each rank, or use group norm",
        )  # fmt: skip
    return Verdict(check, PASSED, "statistics are those of each rank's own batch")
