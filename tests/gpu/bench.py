"""Tests on a GPU that is not there: ``@on_impostor()`` runs the body of a test in a process with impostor devices.

The process (or the processes, of ``workers=2``) is started once and kept, as those of ``@workers`` in
:mod:`harness`; it has an open world whose device is ``cuda:rank``. The impostor never enters the test process itself::

    @on_impostor()
    def test_no_wait() -> None:
        with Recorder() as record:
            ...
        assert not record.waits

Where the impostor cannot be built (no g++, another torch) the test is skipped, and says why.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu.library import skip_without_impostor
from harness import workers as on_workers


def on_impostor(kind: str = "cuda", *, workers: int = 1) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test's body on ``workers`` processes, each on its own impostor device of this kind."""
    return on_workers(workers, impostor=kind, before=skip_without_impostor)
