"""All observers of a worker together."""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from rueda.check.audit.watch.collectives import CollectiveWatch
from rueda.check.audit.watch.counters import Counters
from rueda.check.audit.watch.heart import Heart
from rueda.check.audit.watch.journal import LIMIT, Journal
from rueda.check.audit.watch.loaders import LoaderWatch
from rueda.check.audit.watch.machine import MachineWatch
from rueda.check.audit.watch.modules import ModuleWatch
from rueda.check.audit.watch.place import is_users, place
from rueda.check.audit.watch.steps import StepWatch
from rueda.check.audit.watch.writes import WriteWatch
from rueda.check.patches import Patches
from rueda.check.running import run_script
from rueda.world.compiler_import import default_compiler_options

_DIGIT = re.compile(r"\d")
_WAIT_SECONDS = 30.0  # for the others to make their last step, too


def run_observed(command: Sequence[str], folder: str, rank: int, *, module: bool = False, updates: int = 0) -> None:
    """Run a script in this process, and observe it.

    Args:
        command: the script and its arguments.
        folder: where the journal is written.
        rank: the rank of this worker.
        module: whether the first word is a module, as in ``python -m``.
        updates: optimizer steps after which this worker waits to be ended; 0: none.
    """
    observer = Observer(folder, rank)
    if updates:
        observer.limit(updates)
    with observer.active():
        run_script(command, module=module)


class Observer:
    """Observes a script in this process.

    Args:
        folder: where the journal is written.
        rank: the rank of this worker.
        journal: the journal, if it is one of another kind.
    """

    def __init__(self, folder: str, rank: int, journal: Journal | None = None) -> None:
        self.journal, self.counters = journal or Journal(folder, rank), Counters()
        self._loaders = LoaderWatch(self.journal, self.counters)
        self._steps = StepWatch(self.journal, self.counters)
        self._modules = ModuleWatch(self.journal, self.counters)
        self._collectives = CollectiveWatch(self.journal, self.counters)
        self._machine = MachineWatch(self.journal, self.counters)
        self._writes = WriteWatch(self.journal, self.counters)

    def limit(self, updates: int) -> None:
        """Wait after so many updates; the driver ends all workers once the last one has come so far."""

        def count() -> None:
            if self.counters.steps == updates:
                self.journal.mark(LIMIT)
                time.sleep(_WAIT_SECONDS)

        self._steps.after_step.append(count)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Observe what runs within this context."""
        patches = Patches()
        self.journal.note("start")
        for part in (self._loaders, self._steps, self._modules, self._collectives, self._machine, self._writes):
            part.install(patches)
        self._steps.before_step += [self._loaders.settle, self._collectives.watch_horovod, self._see_device]
        self._steps.after_step += [self._modules.after_step]
        patches.replace(sys.stdout, "write", self._writing)
        patches.replace(DistributedDataParallel, "__init__", _sparing_compiler)
        Heart(self.journal, self.counters).start()
        failure = ""
        try:
            yield
        except BaseException as error:
            code = getattr(error, "code", None) if isinstance(error, SystemExit) else type(error).__name__
            failure = "" if code in (None, 0) else f"{type(error).__name__}: {error}"
            if failure:
                self.journal.note("failure", text=failure[:2000], where=_place_of(error))
            raise
        finally:
            self.journal.finish(stopped=False, failure=failure[:200])
            patches.undo()

    def _see_device(self) -> None:
        watched = self._steps.first
        if watched is not None and self.counters.steps == 1:
            self._machine.begin(watched.device())

    def _writing(self, original: Any) -> Any:
        def write(text: str) -> Any:
            self.counters.printed += _DIGIT.search(text) is not None  # no result is without a number
            return original(text)

        return write


def _sparing_compiler(original: Any) -> Any:
    """Make a DistributedDataParallel without importing torch's compiler, as :meth:`rueda.world.World.wrap` does."""

    @functools.wraps(original)
    def init(*arguments: Any, **options: Any) -> None:
        with default_compiler_options():
            original(*arguments, **options)

    return init


def _place_of(error: BaseException) -> str:
    """Return the innermost place of the user's code in a traceback."""
    found, traceback = "", error.__traceback__
    while traceback is not None:
        if is_users(traceback.tb_frame.f_code.co_filename):
            found = place(traceback.tb_frame).rsplit(":", 1)[0] + f":{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found
