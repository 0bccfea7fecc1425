"""Reaches for what is not its own, without changing it, and ends with a list of what the system has not denied."""

import os
import socket
import sys
import time
from pathlib import Path

import rueda


def unreachable() -> None:
    """Choose a route to an address of the documentation (RFC 5737); no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.connect(("203.0.113.1", 9))


def main() -> None:
    could = []
    for what, act in {
        "list the home": lambda: os.listdir(os.path.expanduser("~root")),
        "list the temporary files of others": lambda: os.listdir("/tmp"),
        "write into the package": lambda: open(rueda.__file__, "a").close(),
        "change the task": lambda: open(Path(__file__).with_name("task.py"), "a").close(),
        "write beside the script": lambda: Path(__file__).with_name("more.py").touch(),
        "signal the launcher": lambda: os.kill(os.getppid(), 0),
        "read another's environment": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "reach the network": unreachable,
    }.items():
        try:
            act()
            could.append(what)
        except OSError:
            pass
    Path(f"rank-{os.environ['RANK']}.done").touch()
    end = time.monotonic() + 60
    while len(list(Path().glob("rank-*.done"))) < int(os.environ["WORLD_SIZE"]) and time.monotonic() < end:
        time.sleep(0.05)  # the first to fail ends the others, perhaps before these have begun
    sys.exit(f"could do: {', '.join(could) or 'nothing'}")


if __name__ == "__main__" and Path(__file__).parent.name == "given":  # where the grader has put it
    main()
