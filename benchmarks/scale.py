"""A serial script under `rueda scale` against the same script converted to DistributedDataParallel by hand.

Both on 2 workers of one thread each, in turns, images/s of whole epochs after the first: `scripts/serial.py`, which
knows nothing of workers, and `scripts/ddp.py`, as its author would convert it. `rueda scale` tunes malloc, as it does
for its users; so that this does not decide, the converted script is measured with malloc tuned as well.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from rich.console import Console

from _common import answer_of, save
from rueda.world.malloc import environment as tuned_malloc

SCRIPTS = Path(__file__).parent / "scripts"
COMMANDS = {
    "rueda scale": ["-m", "rueda.check.scale", str(SCRIPTS / "serial.py")],
    "DDP by hand": [str(SCRIPTS / "ddp.py")],
    "DDP by hand, malloc tuned": [str(SCRIPTS / "ddp.py")],
}
BAR = 0.95


def measure(name: str) -> float:
    """Run a script on 2 workers and return its images/s."""
    kept = dict(os.environ)
    if "tuned" in name:
        os.environ.update(tuned_malloc(os.environ))
    try:
        speed: float | None = answer_of(COMMANDS[name], 2)
    finally:
        os.environ.clear()
        os.environ.update(kept)
    if speed is None:
        sys.exit(f"{name}: expected its images/s, got a failure; see above")
    return speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    speeds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.repeats):
        for name in COMMANDS:
            speeds[name].append(measure(name))
            print(f"  {name}: {speeds[name][-1]:,.0f} images/s", file=sys.stderr, flush=True)
    console, ratios = Console(), {}
    for name in list(COMMANDS)[1:]:
        # Each round is one pair: the noise of the machine is common to both.
        value = statistics.median(a / b for a, b in zip(speeds["rueda scale"], speeds[name], strict=True))
        ratios[f"rueda scale / {name}"] = {"ratio": round(value, 3), "wanted": BAR}
        console.print(f"rueda scale / {name}: {value:.2f} (wanted {BAR})")
    save("scale", {"images_per_second": speeds, "repeats": options.repeats, "ratios": ratios}, seeds=(0,))


if __name__ == "__main__":
    main()
