"""Examples per second of processor time from tar archives: Rueda's reader against webdataset's own loader.

The archives are written first, in the format of webdataset: once with raw images (3 x 32 x 32 bytes and a label), once
with JPEG images of 160 x 120 pixels. Both sides shuffle, decode with the same function and collate batches of 64 with
torch's ``default_collate``; webdataset as its users write it: shards shuffled, a shuffle buffer of 1,000, ``batched``,
``WebLoader``. A round is one epoch and begins anew: Rueda's time includes reading the index of all archives. Each is
measured in the process that trains, and with one loader process.

What is counted is the time of the processors, that of loader processes included: on a machine that others use, wall
time tells how long a process waited for its turn, and its ratios with it. The archives are in the page cache, so the
speed of the disk is not part of it.

    python benchmarks/streaming.py
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import statistics
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from _common import compare, ratio, save
from rueda.data import Loader, TarFiles

BATCH, REPEATS, NUM_SHARDS = 64, 5, 8
SIZES = {"raw 3 x 32 x 32": 8192, "JPEG 160 x 120": 1024}


def write_shards(folder: Path, kind: str) -> list[str]:
    """Write the archives of a kind of image."""
    from PIL import Image

    generator = np.random.default_rng(0)
    paths, number = [], 0
    for shard in range(NUM_SHARDS):
        paths.append(str(folder / f"{kind[:3]}-{shard:03d}.tar"))
        with tarfile.open(paths[-1], "w") as archive:
            for _ in range(SIZES[kind] // NUM_SHARDS):
                if kind.startswith("raw"):
                    ending, data = "bin", generator.bytes(3072)
                else:
                    ending, buffer = "jpg", io.BytesIO()
                    small = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
                    Image.fromarray(small).resize((160, 120)).save(buffer, "JPEG")
                    data = buffer.getvalue()
                for name, content in ((ending, data), ("cls", str(number % 10).encode())):
                    member = tarfile.TarInfo(f"{number:06d}.{name}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
                number += 1
    return paths


def decode(ending: str, data: bytes) -> Any:
    """Make a tensor or a label, the same for both sides."""
    if ending == "cls":
        return int(data)
    if ending == "bin":
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(3, 32, 32)
    from PIL import Image

    return torch.from_numpy(np.array(Image.open(io.BytesIO(data)))).permute(2, 0, 1)


def processor_seconds() -> float:
    """Return the time that this process has used, and those that it has started and that have ended."""
    return sum(os.times()[:4])


def candidates(paths: list[str], ending: str, num_examples: int) -> dict[str, Callable[[], None]]:
    """Return functions that read one epoch."""
    import webdataset

    def both(example: dict[str, Any]) -> tuple[Any, Any]:
        return decode(ending, example[ending]), decode("cls", example["cls"])

    def theirs(num_workers: int) -> None:
        data = webdataset.WebDataset(paths, shardshuffle=len(paths)).shuffle(1000).map(both)
        data = data.batched(BATCH, collation_fn=default_collate)
        drain(webdataset.WebLoader(data, batch_size=None, num_workers=num_workers))

    def ours(num_workers: int, mix: int | None = None) -> None:
        data = TarFiles(paths, fields=(ending, "cls"), decode=decode, mix=mix)
        drain(Loader(data, BATCH, remainder="short", num_workers=num_workers))

    def drain(loader: Any) -> None:
        total = sum(len(labels) for _, labels in loader)
        assert total == num_examples, total

    found: dict[str, Callable[[], None]] = {
        "webdataset": lambda: theirs(0),
        "rueda": lambda: ours(0),
        "rueda, 2 archives mixed at a time": lambda: ours(0, mix=2),
        "webdataset, a loader process": lambda: theirs(1),
        "rueda, a loader process": lambda: ours(1),
    }
    return {name: partial(run_to_the_end, read) for name, read in found.items()}


def run_to_the_end(read: Callable[[], None]) -> None:
    """Read an epoch, and wait until its loader process has ended.

    The system adds the time of a child process to that of its parent when the child has ended. A loader process that
    still ran would be left out here, and would count against whoever is measured next.
    """
    read()
    gc.collect()  # ends the loader's processes: its iterator is part of a cycle of references
    for child in multiprocessing.active_children():
        child.join(timeout=60)
        assert child.exitcode is not None, "a loader process did not end"


def main() -> None:
    torch.set_num_threads(1)
    import webdataset

    rates: dict[str, dict[str, float]] = {}
    ratios: dict[str, dict[str, float]] = {}
    for kind, num_examples in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            ending = "bin" if kind.startswith("raw") else "jpg"
            paths = write_shards(Path(folder), kind)
            seconds = compare(candidates(paths, ending, num_examples), REPEATS, clock=processor_seconds)
        rates[kind] = {name: num_examples / statistics.median(times) for name, times in seconds.items()}
        peers = {name: "webdataset" + ", a loader process" * ("process" in name) for name in seconds}
        ratios[kind] = {name: ratio(seconds, peer, name) for name, peer in peers.items()}
        print(f"{kind}, {num_examples:,} examples in {NUM_SHARDS} archives, batch {BATCH}, median of {REPEATS}")
        for name, rate in rates[kind].items():
            print(f"  {name:36s} {rate:10,.0f} examples/CPU s  {ratios[kind][name]:6.2f} x")
    save(
        "streaming",
        {
            "batch": BATCH, "repeats": REPEATS, "webdataset": webdataset.__version__,
            "clock": "processor time, children included", "examples_per_processor_second": rates, "ratios": ratios,
        },
        seeds=(0,),
    )  # fmt: skip
    least = min(value for kind in ratios.values() for name, value in kind.items() if name.startswith("rueda"))
    print(f"ratio {least:.2f} (at least 1.0)")


if __name__ == "__main__":
    main()
