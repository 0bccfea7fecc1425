"""A program that trains on whatever workers there are, for tests of schedulers, and what it prints."""

from __future__ import annotations

import re
from typing import NamedTuple

# Goes on from the file `saved` until the file `enough` is there; SIGUSR2 lets it save and end with status 75.
LOOP = """
import os, signal, time, torch, rueda
from rueda.world import elastic

def say(what):
    print(f"{what} pid={os.getpid()} rank={world.rank} size={world.size} step={step}", flush=True)

def share():
    with elastic.guard():
        return int(world.broadcast(torch.tensor(step)))

def save():
    if world.rank == 0:
        with open("saved.new", "w") as file:
            file.write(str(step))
        os.replace("saved.new", "saved")

notices = []
signal.signal(signal.SIGUSR2, lambda *_: notices.append(1))
elastic.register()
step = int(open("saved").read()) if os.path.exists("saved") else 0
world = rueda.init()
say("began")
if elastic.generation():
    step = share()
while True:
    try:
        with elastic.guard():
            world.all_reduce(torch.ones(3))
            step += 1
            if step % 10 == 0:
                say("trained")
            time.sleep(0.02)
            asked = torch.tensor([elastic.updates(), os.path.exists("enough"), len(notices) > 0])
            updates, enough, notice = world.all_reduce(asked, "max").tolist()
            if notice:
                save()
                say("saved")
                raise SystemExit(75)
            if enough:
                break
            if updates:
                world = elastic.reform(failed=False, step=step)
                say("changed")
                step = share()
    except elastic.PeerLost:
        world = elastic.reform(failed=True, step=step)
        say("recovered")
        step = share()
say("ended")
"""
_LINE = re.compile(r"(\w+) pid=(\d+) rank=(\d+) size=(\d+) step=(\d+)")


class Said(NamedTuple):
    """A line of a worker."""

    what: str
    pid: int
    rank: int
    size: int
    step: int


def said(text: str) -> list[Said]:
    """Return the lines of the workers in what a job has printed."""
    return [Said(found[1], *map(int, found.groups()[1:])) for found in _LINE.finditer(text)]


def trains(text: str, size: int) -> bool:
    """Return whether so many workers have trained together."""
    return any(line.what == "trained" and line.size == size for line in said(text))
