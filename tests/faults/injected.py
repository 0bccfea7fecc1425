"""What happens inside a worker: the faults of a job, each at its update and once, and a line for every update.

A worker reads the file that ``RUEDA_FAULTS`` names: which faults there are, and where to write. A fault is marked by a
file before it happens, so that a job that is resumed does not suffer it again. Each line of the events says when
(``time.monotonic``, which all processes of a machine share): another process can tell how long a recovery took.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "RUEDA_FAULTS"
GARBAGE = b"\xff\x00not what was written"
Fault = dict[str, Any]


class Worker:
    """A worker of a job with faults.

    Args:
        file: what :func:`order` has written.
    """

    def __init__(self, file: Path) -> None:
        told = json.loads(file.read_text())
        self.control = Path(told["control"])
        self.faults: list[Fault] = told["faults"]
        self.run_folder = Path(told["run"])
        self.pause = float(told["pause"])

    def note(self, what: str, **more: Any) -> None:
        """Append a line to the events; a line is one write, so that processes do not mix theirs."""
        line = json.dumps({"what": what, "time": time.monotonic(), "pid": os.getpid(), **more}) + "\n"
        handle = os.open(self.control / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def enter(self, rank: int, size: int, step: int) -> None:
        """Tell that this process is in a world of an elastic job."""
        host = os.uname().nodename
        self.note("entered", rank=rank, size=size, step=step, generation=generation(), host=host)

    def first_time(self, fault: Fault) -> bool:
        """Whether a fault has not happened yet; from now on it has."""
        try:
            os.close(os.open(self.control / f"fired-{fault['number']}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def at_step(self, rank: int, step: int, parts: dict[str, Any]) -> None:
        """Tell of an update, and let happen what is planned for it.

        Args:
            rank: that of this worker.
            step: the updates so far.
            parts: what a fault may need: the ``model``.
        """
        if rank == 0:
            self.note("step", step=step)
        if self.pause:
            time.sleep(self.pause)
        for fault in self.faults:
            if fault["step"] == step and fault["rank"] == rank and self.first_time(fault):
                self.note("fault", number=fault["number"], step=step)
                HAPPENINGS[fault["how"]](self, fault, parts)

    def obey(self, rank: int, parts: dict[str, Any]) -> None:
        """Let happen what :func:`command` has told this process."""
        file = self.control / f"do-{os.getpid()}"
        if file.exists():
            fault = json.loads(file.read_text())
            file.unlink()
            HAPPENINGS[fault["how"]](self, fault, parts)


def order(control: Path, run: Path, faults: list[Fault], *, pause: float = 0.0) -> Path:
    """Write which faults a job is to suffer, for :class:`Worker`; return the file.

    Args:
        control: the folder of the events.
        run: the run folder.
        faults: what is to happen.
        pause: seconds that each worker waits after an update.
    """
    control.mkdir(parents=True, exist_ok=True)
    file = control / "order.json"
    told = {"control": str(control), "run": str(run), "faults": faults, "pause": pause}
    file.write_text(json.dumps(told))
    return file


def generation() -> int:
    """Return how often the world of this elastic job was formed before."""
    return int(os.environ.get("RUEDA_ELASTIC_GENERATION", "0"))


def command(control: Path, pid: int, fault: Fault) -> None:
    """Tell a process of a job that a fault is to happen in it after its next update."""
    file = control / f"do-{pid}"
    file.with_suffix(".part").write_text(json.dumps(fault))
    file.with_suffix(".part").rename(file)


# Processes.


def kill(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Be killed a moment later: in the update, in a collective, in the test or while a checkpoint is written."""
    threading.Timer(fault["seconds"], os.kill, (os.getpid(), signal.SIGKILL)).start()


def kill_driver(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Kill the launcher: the process above the agent."""
    agent = os.getppid()
    os.kill(int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)


def stop(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Be stopped (SIGSTOP), and go on after some seconds; without ``seconds``, never."""
    if fault["seconds"]:
        later = f"sleep {fault['seconds']}; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", later], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def run_out_of_memory(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Limit the memory of this process to a little more than it has, and want more, as a batch that is too large."""
    import torch

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (16 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.empty(64 << 20).fill_(1.0)


# Disks and files.


def fill_disk(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Fill the file system of the run folder."""
    handle = os.open(worker.run_folder.parent / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        for size in (4096, 1):
            with_room = True
            while with_room:
                try:
                    os.write(handle, bytes(size))
                except OSError:
                    with_room = False
    finally:
        os.close(handle)


def make_read_only(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Let the file system of the run folder become read-only; what is open for writing stays so."""
    folder = str(worker.run_folder.parent)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)


def newest(worker: Worker) -> Path | None:
    files = sorted((worker.run_folder / "checkpoints").glob("step-*.pt"))
    return files[-1] if files else None


def tear(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Shorten the newest checkpoint, as a lost power supply does, and be killed."""
    if (file := newest(worker)) is not None:
        os.truncate(file, int(file.stat().st_size * fault["share"]))
    os.kill(os.getpid(), signal.SIGKILL)


def alter(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Change one byte of the newest checkpoint, and be killed."""
    if (file := newest(worker)) is not None:
        content = bytearray(file.read_bytes())
        content[int(len(content) * fault["share"])] ^= 1 << fault["bit"] % 8
        file.write_bytes(content)
    os.kill(os.getpid(), signal.SIGKILL)


def tear_rows(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Leave half a line at the end of the metrics, and be killed."""
    with open(worker.run_folder / "metrics.jsonl", "ab") as stream:
        stream.write(b'{"kind": "epoch", "epo')
    os.kill(os.getpid(), signal.SIGKILL)


# The clock, the store, the memory.


def set_clock_back(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Set the clock of all processes with the preloaded library back, or else that of Python in this process."""
    offset = os.environ.get("RUEDA_CLOCK")
    if offset is not None:
        Path(offset).write_bytes(int(-fault["seconds"]).to_bytes(8, sys.byteorder, signed=True))
        return
    real, seconds = time.time, fault["seconds"]
    time.time = lambda: real() - seconds
    time.time_ns = lambda: int((real() - seconds) * 1e9)


def poison_store(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Overwrite all that is in the store of the process group."""
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    for key in store.list_keys():
        store.set(key, GARBAGE)


def flip_bit(worker: Worker, fault: Fault, parts: dict[str, Any]) -> None:
    """Flip one bit of one parameter in the memory of this worker."""
    import torch

    parameters = [one.detach().view(-1) for one in parts["model"].parameters()]
    values = parameters[int(fault["share"] * len(parameters))]
    index, mask = int(fault["share"] * 1e4) % len(values), 1 << fault["bit"]
    numbers = values.view({4: torch.int32, 8: torch.int64}[values.element_size()])
    numbers[index] ^= mask - (1 << 32) if fault["bit"] == 31 else mask


HAPPENINGS: dict[str, Callable[[Worker, Fault, dict[str, Any]], None]] = {
    each.__name__: each
    for each in (
        kill, kill_driver, stop, run_out_of_memory, fill_disk, make_read_only, tear, alter, tear_rows, set_clock_back,
        poison_store, flip_bit,
    )
}  # fmt: skip


def poison_rendezvous(worker: Worker) -> None:
    """Let this worker write garbage under one key while the workers find each other, if that is planned."""
    from torch.distributed import PrefixStore

    rank = int(os.environ.get("RANK", "0"))
    for fault in worker.faults:
        if fault["how"] == "poison_key" and fault["rank"] == rank:
            own = PrefixStore.set

            def poisoned(self: Any, name: str, value: Any, own: Any = own, fault: Fault = fault) -> None:
                if name.split("/")[0] == fault["key"] and worker.first_time(fault):
                    worker.note("fault", number=fault["number"], step=0)
                    value = GARBAGE.decode("latin-1") if isinstance(value, str) else GARBAGE
                own(self, name, value)

            PrefixStore.set = poisoned  # type: ignore[method-assign]


def arm() -> Worker | None:
    """Let the trainings of this process suffer what ``RUEDA_FAULTS`` tells; None if it is not set."""
    if VARIABLE not in os.environ:
        return None
    from rueda.train.training import Training

    worker = Worker(Path(os.environ[VARIABLE]))
    original = Training.step

    def step(self: Training, **options: Any) -> Any:
        result = original(self, **options)
        worker.at_step(self.world.rank, self.state.step, {"model": self.model})
        return result

    Training.step = step  # type: ignore[method-assign]
    poison_rendezvous(worker)
    return worker
