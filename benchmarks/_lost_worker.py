"""One worker of four is killed (SIGKILL): seconds until the next step, by an elastic job of Rueda and by torchrun.

A part of `benchmarks/safety.py`. The script (`scripts/loses_a_worker.py`) is the same. Under ``rueda run --min-np 1``
the survivors keep their processes and form a new world; torchrun stops all processes and starts four new ones. The two
take turns. Wanted: at most half of torchrun's time. On torch 2.13, a restart by ``torchrun --standalone`` over Gloo
finds the addresses of the dead workers in the store and fails; ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` prevents it.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SCRIPT = str(Path(__file__).with_name("scripts") / "loses_a_worker.py")
WORKERS, BEFORE, MOST_STEPS, LIMIT = 4, 20, 1_000_000, 180.0
SURVIVORS, RESTART = "survivors", "torchrun"
WANTED = 0.5
COMMANDS = {
    SURVIVORS: ["rueda", "run", "--min-np", "1", "--max-np", str(WORKERS), "--restarts", "3"],
    RESTART: ["torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", "3"],
}


def steps(folder: Path) -> list[tuple[int, int, float, int]]:
    """Return attempt, step, time and process of each step that was noted."""
    found = []
    for file in folder.glob("*.steps"):
        for line in file.read_text().splitlines():
            if len(words := line.split()) == 3:
                found.append((int(words[0]), int(words[1]), float(words[2]), int(file.stem)))
    return found


def awaited(folder: Path, process: subprocess.Popen[bytes], enough: Any) -> Any:
    """Look at the steps until some are enough, and return what was found in them."""
    limit = time.monotonic() + LIMIT
    while time.monotonic() < limit and process.poll() is None:
        if found := enough(steps(folder)):
            return found
        time.sleep(0.05)
    raise SystemExit(f"no step in {LIMIT:.0f} s, or the job has ended (status {process.poll()})")


def measure(name: str) -> float:
    """Kill one worker of a job that trains; return the seconds until the first step of the next attempt."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        command = [sys.executable, "-m", *COMMANDS[name], SCRIPT, str(folder), str(MOST_STEPS)]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, env=environ, stdout=quiet, stderr=quiet, start_new_session=True) as process:
            try:

                def trains(found: list[tuple[int, int, float, int]]) -> list[int]:
                    running = {one[3] for one in found if one[1] >= BEFORE}
                    return sorted(running) if len(running) == WORKERS else []

                killed, since = awaited(folder, process, trains)[-1], time.time()
                os.kill(killed, signal.SIGKILL)
                later = awaited(folder, process, lambda found: [one[2] for one in found if one[0] > 0])
                return float(min(later) - since)
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def compare(rounds: int) -> dict[str, Any]:
    """Let both take turns; return the seconds of each, and the ratio of their medians."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, taken in seconds.items():
            taken.append(round(measure(name), 3))
            print(f"{name}: {taken[-1]:.2f} s from the kill to the next step")
    ratio = statistics.median(seconds[SURVIVORS]) / statistics.median(seconds[RESTART])
    print(f"survivors go on in {ratio:.3f} of torchrun's time (wanted {WANTED})")
    return {"workers": WORKERS, "seconds": seconds, "ratio": round(ratio, 4), "wanted": WANTED}
