"""The change of a worker to the next generation.

Phases of :func:`reform`: leave the present world; ask for the next generation; wait for the assignment; take over its
variables; open the new world. If that fails, because another member was lost meanwhile, it asks again.

After a failure a worker leaves its world first, which ends the collectives of the others, too. If nothing failed, it
asks first and leaves when all members have asked: until then, others may be in a last collective with it.
"""

from __future__ import annotations

import os
import sys
import traceback
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING

from rueda.errors import PeerError, PeerLost, RuedaError, WorldError
from rueda.world.elastic import broken, membership
from rueda.world.elastic.link import Assignment, Farewell, link, opened
from rueda.world.leaving import leave

if TYPE_CHECKING:
    from rueda.world.world import World

_MOST_TRIES = 100
_step: int | None = None


def register() -> None:
    """Declare that this worker can survive a failure of others: it will call :func:`reform`.

    It may be called before or after ``rueda.init``, and more than once. In a job that is not elastic it does nothing.
    """
    if not membership.is_elastic() or link().registered:
        return
    announce()
    link().registered = True
    link().send(say="register")


def announce() -> None:
    """Let the driver know which exception ends this process, before the collectives of others fail because of it.

    :func:`register` does it, too. In a job that is not elastic it does nothing.
    """
    if membership.is_elastic():
        link()
        _tell_of_exceptions()


def updates() -> int:
    """Return which hosts have changed since this world was formed: 0 none, 1 removed, 2 added, 3 both.

    It costs nothing: no message is sent. The workers learn of a change at different moments, so that they must agree
    on it, by a collective, before they call :func:`reform`.
    """
    found = opened()
    return 0 if found is None else found.updates


def progress(step: int) -> None:
    """Remember the step that this worker is at; the driver is told only if an exception ends this process.

    A job whose worker fails twice with the same error at the same step ends, since a third time would be no better.
    """
    global _step
    _step = step


def reform(*, failed: bool, step: int | None = None) -> World:
    """Leave the present world, wait for the next generation, and open its world.

    Args:
        failed: whether a collective failed; False if hosts have changed, which all workers have agreed on.
        step: the step that this worker goes on from, for the driver's lines.

    Returns:
        the new world, which is also that of ``rueda.world.current()``. Its ranks are new; rank 0 is a worker that was
        in the former world, if there is one.

    Raises:
        WorldError: the job gives up; or the script has made its process group itself.
    """
    from rueda.world import life

    if life.is_open() and life.current().identity.launcher == "torch.distributed":
        raise WorldError(
            "the script has created its process group itself, which cannot be formed anew; call rueda.init() instead"
        )
    if step is not None:
        progress(step)
    register()
    former = life.current() if life.is_open() else None
    reason = str(broken.error() or "") if failed else ""
    for _ in range(_MOST_TRIES):
        if failed:
            broken.leaving(True)
            life.abandon()
        link().send(say="arrive", failed=failed, step=_step, reason=reason, generation=membership.generation())
        assignment = _assignment()
        if not failed:
            broken.leaving(False)
            life.finish()
        try:
            return _enter(assignment, former)
        except (WorldError, RuntimeError, OSError) as error:
            failed, reason = True, str(error).splitlines()[0] if str(error) else type(error).__name__
    raise WorldError(f"no world could be formed in {_MOST_TRIES} tries; the last error: {reason}")


def join(*, seed: int | None = None, device: str | None = None) -> World:
    """Open the first world of a fresh process, in the generation that lets it in.

    Args:
        seed: as for ``rueda.init``.
        device: as for ``rueda.init``.
    """
    from rueda.world import life

    announce()
    link().send(say="join")
    while True:
        assignment = _assignment()
        try:
            return _enter(assignment, None, seed=seed, device=device)
        except (WorldError, RuntimeError, OSError) as error:
            life.abandon()
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            link().send(say="arrive", failed=True, step=None, reason=reason, generation=assignment.generation)


def _assignment() -> Assignment:
    """Wait for the next generation; ends this process if the job goes on without it."""
    answer = link().wait()
    if isinstance(answer, Farewell):
        if answer.gives_up:
            raise WorldError(f"the elastic job ends: {answer.why}")
        print(f"rueda: this worker leaves the job: {answer.why}", file=sys.stderr, flush=True)
        leave(0)
    return answer


def _enter(
    assignment: Assignment, former: World | None, *, seed: int | None = None, device: str | None = None
) -> World:
    """Open the world of a generation; the random numbers of a survivor go on as they were."""
    from rueda.world import life

    membership.enter(assignment.variables)
    world = life.reopen(former, seconds=assignment.seconds, seed=seed, device=device)
    broken.raise_if_broken()  # a member was lost while the others connected
    return world


@cache
def _tell_of_exceptions() -> None:
    """Tell the driver which exception ends this process, and at which step; registered only once.

    The driver knows it first: only then do the collectives of the other workers fail, so that their errors come later.
    Afterwards the process ends without tearing down its modules, since the survivors wait for its end: with torch, that
    takes seconds on a busy machine.
    """
    before = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            failing(error)
        before(kind, error, trace)
        if isinstance(error, Exception):
            broken.break_world(f"rank {os.environ.get('RANK', '?')} has exited with {kind.__name__}")
        if issubclass(kind, Exception) and sys.excepthook is tell:  # nobody else has something to do afterwards
            leave(1)

    sys.excepthook = tell


def failing(error: Exception | str) -> bool:
    """Tell the driver which error ends this process, before it ends; uncaught exceptions are told without this call.

    A :class:`~rueda.errors.RuedaError`, such as a recipe that contradicts itself, is *final*: a fresh process would
    raise it again, so that the job ends with it. So does a text, which is the reason of an end that is no exception.
    Of a process that has not called :func:`register` none is final, and in a job that is not elastic nothing is told.

    Returns:
        Whether the driver prints the error, which is final.
    """
    found = opened()
    if found is None:
        return False
    if isinstance(error, str):
        found.send(say="failing", error=error, step=_step, final=True)
        return True
    final = found.registered and isinstance(error, RuedaError) and not isinstance(error, (PeerError, PeerLost))
    text = str(error).strip().splitlines()[-1:] if final else traceback.format_exception_only(error)[-1:]
    found.send(say="failing", error="".join(text).strip(), step=_step, final=final)
    return final and not membership.is_pending()
