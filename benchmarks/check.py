"""What `rueda check` costs a step of a DDP script, once the first 20 steps are over.

`scripts/steps.py` runs on 2 workers each with one thread under `rueda run` and under `rueda check`, in turns: a small
MLP, whose steps take about a millisecond, and a CNN. The figure is the median over rounds of a step's time with the
observation over that without in the same round; wanted is at most 1.05. The processor's time of rank 0 (all threads)
is compared as well: it shows the work that the observation adds where other programs disturb the clock on the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from rich.console import Console

from _common import ratio, save

SCRIPT = Path(__file__).parent / "scripts" / "steps.py"
CLOCKS = ("wall", "processor")
RUN, CHECK = "rueda run", "rueda check"
COMMANDS = {RUN: ["run"], CHECK: ["check", "--updates", "0"]}
WANTED = 1.05


def measure(name: str, model: str) -> dict[str, float]:
    """Run the script on 2 workers and return the seconds of a step by both clocks."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "rueda", *COMMANDS[name], "-np", "2", str(SCRIPT), model, str(answer)]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, capture_output=True, check=False
        )
        if not answer.exists():
            sys.exit(f"{name}: expected the seconds of a step, got a failure: {done.stdout}{done.stderr}")
        seconds: dict[str, float] = json.loads(answer.read_text(encoding="utf-8"))
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    console, ratios, seconds = Console(), {}, {}
    for model in ("mlp", "cnn"):
        taken: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in COMMANDS} for clock in CLOCKS}
        for _, name in product(range(options.repeats), COMMANDS):
            answer = measure(name, model)
            for clock in CLOCKS:
                taken[clock][name].append(answer[clock])
            print(f"  {model}, {name}: {1e3 * answer['wall']:.3f} ms", file=sys.stderr, flush=True)
        seconds[model] = taken
        for clock in CLOCKS:
            value = ratio(taken[clock], CHECK, RUN)
            ratios[f"{model}, {clock}"] = {"ratio": round(value, 3), "wanted": WANTED}
            console.print(f"{model}: {CHECK} / {RUN}, {clock} time of a step: {value:.3f} (wanted {WANTED})")
    save("check", {"seconds_per_step": seconds, "repeats": options.repeats, "ratios": ratios}, seeds=(0,))


if __name__ == "__main__":
    main()
