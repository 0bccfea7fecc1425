"""How long does a launch take? `rueda run -np 2` against `torchrun --nproc-per-node 2`, the same script, in turns.

Two scripts: one that prints a line, and one that opens a process group and sums over it. The target: no slower than
torchrun (a ratio of at most 1) for the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _common import compare, ratio, save

SCRIPTS = {
    "a line printed": "import os\nprint('rank', os.environ['RANK'])\n",
    "a sum over two workers": (
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\ndist.destroy_process_group()\n"
    ),
}
LAUNCHERS = {
    "rueda run": [sys.executable, "-c", "from rueda.cli import main; main()", "run", "-np", "2"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SCRIPTS.items():
            script = Path(folder) / "script.py"
            script.write_text(text)
            seconds = compare(
                {launcher: _start([*command, str(script)]) for launcher, command in LAUNCHERS.items()},
                repeats,
                warmup=1,
            )
            medians = {f"{launcher} seconds": statistics.median(values) for launcher, values in seconds.items()}
            fastest = {f"{launcher} fastest": min(values) for launcher, values in seconds.items()}
            results[name] = {**medians, **fastest, "ratio": ratio(seconds, "rueda run", "torchrun")}
    print(f"{'script':<24}{'rueda run':>12}{'torchrun':>12}{'ratio':>8}   (seconds, medians of {repeats})")
    for name, row in results.items():
        print(f"{name:<24}{row['rueda run seconds']:>12.2f}{row['torchrun seconds']:>12.2f}{row['ratio']:>8.2f}")
    save("launch", {"repeats": repeats, "workers": 2, "results": results}, seeds=())
    print(f"ratio: {results['a line printed']['ratio']:.2f} of torchrun's time (target: at most 1)")


def _start(command: list[str]) -> Callable[[], object]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}  # or torchrun warns that it sets it
    return lambda: subprocess.run(command, check=True, capture_output=True, env=environ)


if __name__ == "__main__":
    main()
