"""Elastic training: a state that is committed in memory, and a training function that starts again from it.

::

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, num_batches):
            train_one_batch()
            if state.batch % 10 == 0:
                state.commit()

    train(hvd.elastic.TorchState(model, optimizer, batch=0))

``run`` gives all ranks the state of rank 0 and calls the function. In a job that was started with ``--min-np`` the
workers change while it runs, and ``run`` calls the function again, in the same process:

==========================  ===========================  ====================================================
what happens                what the function's          what ``run`` does
                            collectives raise
==========================  ===========================  ====================================================
a worker is lost            HorovodInternalError         returns to the last commit, forms a new world
hosts come or shall leave   HostsUpdatedInterrupt, from  forms a new world; nothing is lost
                            ``commit`` or
                            ``check_host_updates``
the function has a defect   its own exception            raises it
==========================  ===========================  ====================================================

After a new world was formed, ``run`` calls the functions of ``register_reset_callbacks``, which adapt the learning rate
to the number of workers, and gives all ranks the state of the first rank that has one: a fresh worker has none.

Every commit copies the state, so that fewer commits cost less, and after a failure more batches are trained again.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

from rueda.hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt, MismatchError, OperationError
from rueda.world import elastic

_REMOVED, _ADDED = 1, 2


class State:
    """What must be the same on all ranks and survive an interruption.

    Args:
        bcast_object: broadcasts an object from rank 0, or from ``root_rank``.
        get_rank: returns this worker's rank.
    """

    root_rank = 0
    """the rank whose state :meth:`sync` gives to all ranks"""
    is_synchronized = False
    """whether :meth:`sync` has been completed once: only then does this worker's state count"""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self._hosts_updated = 0  # the changes, as flags: _REMOVED, _ADDED

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Add functions that are called after the workers have been connected anew, to adapt to their number."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Forget changes of hosts, and call the callbacks."""
        self._hosts_updated = 0
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float = 0.0, update_res: int = 0) -> None:
        """Remember that hosts have changed; the next commit or check raises HostsUpdatedInterrupt.

        Args:
            timestamp: ignored: only that there was a change counts.
            update_res: Horovod's flags: 1 if hosts were removed, 2 if some were added, 3 if both. If hosts were only
                removed, the state of the others is in step and is not sent again.
        """
        self._hosts_updated |= update_res or _REMOVED | _ADDED

    def commit(self) -> None:
        """Save the state in memory, and check whether hosts have changed."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt on all ranks if rank 0 knows that hosts have changed."""
        changes = self._bcast_object(self._hosts_updated | elastic.updates())
        if changes:
            self._hosts_updated = 0
            raise HostsUpdatedInterrupt(changes == _REMOVED)

    def save(self) -> None:
        """Copy the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to what was last saved."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Prepare for a new number of workers; nothing by default."""


class ObjectState(State):
    """Values that can be pickled, as attributes.

    Args:
        bcast_object: broadcasts an object from rank 0, or from ``root_rank``.
        get_rank: returns this worker's rank.
        kwargs: the values.

    >>> state = ObjectState(lambda value: value, lambda: 0, batch=1, seen=[0])
    >>> state.batch, _ = 7, state.seen.append(1)
    >>> state.restore()
    >>> state.batch, state.seen
    (1, [0])
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = tuple(kwargs)
        vars(self).update(kwargs)
        self.save()

    def save(self) -> None:
        """Copy the values in memory."""
        self._saved = copy.deepcopy({name: getattr(self, name) for name in self._names})

    def restore(self) -> None:
        """Return to the values that were last saved."""
        vars(self).update(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Give all ranks the values of rank 0, and save."""
        if self._names:
            root = {"root_rank": self.root_rank} if self.root_rank else {}
            vars(self).update(self._bcast_object({name: getattr(self, name) for name in self._names}, **root))
        self.save()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a state that synchronises it and calls ``func(state, ...)``, again after workers changed.

    Raises:
        HorovodInternalError: a collective failed, and the job is not elastic, or the ranks submitted different tensors.
    """
    return run_fn(func, _connect_anew)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Do the work of :func:`run` with another function to connect the workers anew.

    Args:
        func: the training function, whose first argument is the state.
        reset: connects the workers anew in a job that is not elastic.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        elastic.register()
        was_reset = skip_sync = False
        while True:
            try:
                if was_reset:
                    state.on_reset()
                if not skip_sync:
                    _synchronize(state)
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt as interrupt:
                # In an elastic job a fresh worker may come at the same moment, which needs the state.
                failed, skip_sync = False, interrupt.skip_sync and not elastic.is_elastic()
            except Exception as error:
                failure = _collective_failure(error)
                if failure is None:
                    raise
                state.restore()
                _raise_if_final(failure, error)
                failed, skip_sync = True, False
            if elastic.is_elastic():
                _reform(failed)
            else:
                reset()
            was_reset = True

    return wrapper


def _synchronize(state: State) -> None:
    """Give all ranks the state of the first rank that has one; when a job begins, none has, and rank 0's counts."""
    if elastic.is_elastic():
        from rueda.hvd.core import lifecycle, prelude
        from rueda.hvd.torch.functions import allgather_object

        lifecycle.engine().end_prelude()
        have_state: list[bool] = allgather_object(state.is_synchronized, name=prelude.ENTRANCE)
        state.root_rank = have_state.index(True) if True in have_state else 0
    state.sync()
    state.is_synchronized = True


def _raise_if_final(failure: HorovodInternalError, cause: Exception) -> None:
    """Raise an error that a new world would not prevent, or that cannot be followed by one."""
    if isinstance(failure, (MismatchError, OperationError)):
        raise type(failure)(f"elastic: {failure}; the state is that of the last commit") from cause
    if not elastic.is_elastic():
        raise type(failure)(
            f"elastic: {failure}; the state is that of the last commit: to go on without a worker that is lost, start "
            "the job with --min-np"
        ) from cause


def _collective_failure(error: Exception) -> HorovodInternalError | None:
    """Return the error of a collective as a HorovodInternalError; None for an error of the training function itself.

    TensorFlow reports a collective that failed in a ``tf.function`` by a text. In an elastic job also a collective of
    torch.distributed fails when a worker is lost.

    >>> _collective_failure(type("UnknownError", (Exception,), {})("{{node a}} StallError: 'x' waited for rank 1"))
    StallError("{{node a}} StallError: 'x' waited for rank 1")
    >>> _collective_failure(ValueError("of the script"))
    """
    if isinstance(error, HorovodInternalError):
        return error
    kinds: list[type[HorovodInternalError]] = [*HorovodInternalError.__subclasses__(), HorovodInternalError]
    text = str(error)
    if type(error).__name__ == "UnknownError":
        return next((kind(text.partition("\n")[0]) for kind in kinds if f"{kind.__name__}: " in text), None)
    if elastic.is_elastic():
        from rueda.world.elastic.guarding import means_lost_peer  # imports torch

        if means_lost_peer(error):
            return HorovodInternalError(text.partition("\n")[0])
    return None


def _connect_anew() -> None:
    from rueda.hvd import basics  # imports torch

    basics.shutdown()
    basics.init()


def _reform(failed: bool) -> None:
    from rueda.hvd import basics  # imports torch

    basics.reform(failed=failed)
