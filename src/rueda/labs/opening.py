"""Open a lab in the browser: start marimo with the notebook, with few threads, until the learner ends it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.util import find_spec

from rueda.errors import LabError, MissingExtra
from rueda.labs.catalogue import Lab


def need_marimo() -> None:
    """Raise MissingExtra if marimo is not installed."""
    if find_spec("marimo") is None:
        raise MissingExtra("marimo", "labs")


def command(lab: Lab, *, edit: bool = False, port: int | None = None, browser: bool = True) -> list[str]:
    """Return the command that opens a lab."""
    # With a token: an exercise runs the learner's code, which nobody else on the machine may send.
    options = ["--token", "--no-sandbox", "--host", "127.0.0.1", *(["--port", str(port)] if port is not None else [])]
    options += [] if browser else ["--headless"]
    return [sys.executable, "-m", "marimo", "edit" if edit else "run", str(lab.notebook), *options]


def open_lab(lab: Lab, *, edit: bool = False, port: int | None = None, browser: bool = True) -> int:
    """Open a lab and wait until it is ended; return the exit status.

    Args:
        lab: the lab.
        edit: show the cells' code, which can be changed, in place of the lab as an app.
        port: the port on the loopback interface; None: marimo chooses a free one.
        browser: open the browser.

    Raises:
        MissingExtra: marimo is not installed.
        LabError: the notebook is not there, or the port is in use.
    """
    need_marimo()
    if not lab.notebook.is_file():
        raise LabError(f"lab {lab.number}", expected="its notebook", got=str(lab.notebook), do="install rueda again")
    if port is not None and not _is_free(port):
        raise LabError("--port", expected="a free port", got=port, do="choose another, or leave it out")
    environment = {"OMP_NUM_THREADS": "1", "MARIMO_SKIP_UPDATE_CHECK": "1", **os.environ}
    with subprocess.Popen(command(lab, edit=edit, port=port, browser=browser), env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a port just left is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
