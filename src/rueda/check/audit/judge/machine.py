"""The machine: threads and cores, GPUs, the backend, and a loader that is slower than the GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rueda.check.audit.judge.journals import Journals, Note
from rueda.records.script_check import FAILED, NOT_SEEN, PASSED, WARNING, Verdict

_WAITS = 0.3  # of the time of a step, from which on the loader is called slow


def judge_machine(journals: Journals) -> Iterator[Verdict]:
    """Judge how the ranks use their machine."""
    notes = dict(journals.flat("machine"))
    yield _threads(notes)
    yield _gpus(notes)
    yield _backend(notes)
    yield _loader(notes)


def _threads(notes: dict[int, Note]) -> Verdict:
    check = "too-many-threads"
    on_cpu = {rank: note for rank, note in notes.items() if note["device"] == "cpu"}
    if not on_cpu:
        return Verdict(check, NOT_SEEN, "no rank has trained on a CPU")
    for host in {note["host"] for note in on_cpu.values()}:
        here = [note for note in on_cpu.values() if note["host"] == host]
        threads, cores = sum(note["threads"] for note in here), here[0]["cores"]
        if threads > max(cores, len(here)):
            return Verdict(
                check, WARNING,
                f"the {len(here)} ranks of one machine use {threads} threads, and it has {cores} cores: they wait for "
                "each other",
                tuple(dict.fromkeys(note["threads_place"] for note in here if note["threads_place"])),
                f"give each rank {max(1, cores // len(here))}: torch.set_num_threads or OMP_NUM_THREADS",
            )  # fmt: skip
    return Verdict(check, PASSED)


def _gpus(notes: dict[int, Note]) -> Verdict:
    used = Counter((note["host"], note["gpu"]) for note in notes.values() if note["gpu"])
    if not used:
        return Verdict("one-gpu", NOT_SEEN, "no rank has trained on a GPU")
    (host, _), count = used.most_common(1)[0]
    if count > 1:
        return Verdict(
            "one-gpu", FAILED, f"{count} ranks train on the same GPU of {host}", (),
            "give each rank its own: torch.cuda.set_device(local_rank)",
        )  # fmt: skip
    return Verdict("one-gpu", PASSED)


def _backend(notes: dict[int, Note]) -> Verdict:
    check = "wrong-backend"
    known = {rank: note for rank, note in notes.items() if note["backend"]}
    if not known:
        return Verdict(check, NOT_SEEN, "the script has no process group of torch")
    for rank, note in known.items():
        if note["device"] == "cuda" and "nccl" not in note["backend"]:
            return Verdict(
                check, WARNING, f"rank {rank} trains on a GPU over {note['backend']}, which copies through the CPU", (),
                'init_process_group("nccl")',
            )  # fmt: skip
    return Verdict(check, PASSED)


def _loader(notes: dict[int, Note]) -> Verdict:
    check = "slow-loader"
    timed = {rank: note for rank, note in notes.items() if note["device"] == "cuda" and note.get("seconds")}
    if not timed:
        return Verdict(check, NOT_SEEN, "no rank has trained on a GPU")
    rank, slowest = max(timed.items(), key=lambda item: item[1]["loading"] / item[1]["seconds"])
    share = slowest["loading"] / slowest["seconds"]
    if share > _WAITS:
        return Verdict(
            check, WARNING, f"rank {rank} waits for its loader during {share:.0%} of the time: its GPU is idle", (),
            "give the DataLoader more processes (num_workers), pin_memory=True and persistent_workers=True",
        )  # fmt: skip
    return Verdict(check, PASSED)
