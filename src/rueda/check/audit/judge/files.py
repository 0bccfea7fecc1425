"""Files, downloads and experiment trackers: one rank does it, and a checkpoint is replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rueda.check.audit.judge.journals import Journals
from rueda.check.audit.watch.place import shown
from rueda.records.script_check import FAILED, NOT_SEEN, PASSED, WARNING, Verdict

_EVENTS = "events.out.tfevents"  # how TensorBoard names its files


def judge_files(journals: Journals) -> Iterator[Verdict]:
    """Judge what the ranks write and fetch."""
    one_worker = journals.size == 1
    yield Verdict("same-file", NOT_SEEN, "there is one worker only") if one_worker else _same_file(journals)
    yield _torn(journals)
    yield _downloads(journals)
    yield _trackers(journals)


def _same_file(journals: Journals) -> Verdict:
    # Ranks that write between different collectives take turns, such as by a barrier in a loop over the ranks.
    writers: dict[tuple[str, int], dict[int, str]] = {}
    for rank, note in journals.flat("write"):
        writers.setdefault((note["path"], note.get("exchanges", 0)), {}).setdefault(rank, note["where"])
    if not writers:
        return Verdict("same-file", NOT_SEEN, "no file was written")
    for (path, _), ranks in writers.items():
        if len(ranks) > 1:
            return Verdict(
                "same-file", FAILED,
                f"ranks {_listed(ranks)} write the same file, {shown(path)}",
                tuple(dict.fromkeys(ranks.values())),
                "let rank 0 alone write it (`if rank == 0:`), or give each rank a name of its own",
            )  # fmt: skip
    return Verdict("same-file", PASSED)


def _torn(journals: Journals) -> Verdict:
    check = "torn-checkpoint"
    moved = {note["source"] for _, note in journals.flat("rename")}
    saved: dict[tuple[int, str], list[str]] = {}
    for rank, note in journals.flat("write"):
        if note["how"] == "torch.save":
            saved.setdefault((rank, note["path"]), []).append(note["where"])
    if not saved:
        return Verdict(check, NOT_SEEN, "torch.save has written no file")
    for (_, path), places in saved.items():
        if len(places) > 1 and path not in moved:
            return Verdict(
                check, WARNING,
                f"{shown(path)} is overwritten in place: a job that ends meanwhile leaves neither the old checkpoint "
                "nor the new one",
                (places[0],), "save under a temporary name in the same folder, then os.replace(temporary, path)",
            )  # fmt: skip
    return Verdict(check, PASSED)


def _downloads(journals: Journals) -> Verdict:
    check = "every-rank-downloads"
    asked: dict[str, dict[int, str]] = {}
    for rank, note in journals.flat("request"):
        asked.setdefault(note["address"], {}).setdefault(rank, note["where"])
    if not asked:
        return Verdict(check, NOT_SEEN, "nothing was fetched through urllib")
    for address, ranks in asked.items():
        if len(ranks) == journals.size > 1:
            return Verdict(
                check, WARNING, f"every rank fetches {address}", tuple(dict.fromkeys(ranks.values())),
                "let rank 0 of each machine fetch it while the others wait at a barrier",
            )  # fmt: skip
    return Verdict(check, PASSED)


def _trackers(journals: Journals) -> Verdict:
    check = "every-rank-tracks"
    started: dict[str, dict[int, str]] = {}
    for rank, note in journals.flat("tracker"):
        started.setdefault(note["name"], {})[rank] = note["where"]
    for rank, note in journals.flat("write"):
        if _EVENTS in os.path.basename(note["path"]):
            folder = shown(os.path.dirname(note["path"]))
            started.setdefault(f"TensorBoard in {folder}", {}).setdefault(rank, note["where"])
    if not started:
        return Verdict(check, NOT_SEEN, "no experiment tracker was started")
    for name, ranks in started.items():
        if len(ranks) > 1:
            places = tuple(dict.fromkeys(filter(None, ranks.values())))
            return Verdict(
                check, WARNING, f"ranks {_listed(ranks)} each start a run of {name}: one training appears as several",
                places, "start the tracker on rank 0 alone",
            )  # fmt: skip
    return Verdict(check, PASSED)


def _listed(ranks: dict[int, str]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return ", ".join(names[:-1]) + f" and {names[-1]}"
