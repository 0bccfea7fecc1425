"""Elastic training: a state that is committed in memory, and a training function that starts again from it.

::

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, num_batches):
            train_one_batch()
            if state.batch % 10 == 0:
                state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, batch=0))

``run`` gives all ranks rank 0's state and calls the function. When the hosts change (``HostsUpdatedInterrupt``) it
connects the workers anew and calls the function again. A worker that fails cannot be replaced yet: the error is raised,
with what to do, after the state has been restored to its last commit.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

from rueda.hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

_REMOVED, _ADDED = 1, 2


class State:
    """What must be the same on all ranks and survive an interruption.

    Args:
        bcast_object: broadcasts an object from rank 0.
        get_rank: returns this worker's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
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
        changes = self._bcast_object(self._hosts_updated)
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
        bcast_object: broadcasts an object from rank 0.
        get_rank: returns this worker's rank.
        kwargs: the values.

    >>> state = ObjectState(lambda value: value, lambda: 0, batch=1, seen=[0])
    >>> state.batch, _ = 7, state.seen.append(1)
    >>> state.restore()
    >>> state.batch, state.seen
    (1, [0])
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
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
            vars(self).update(self._bcast_object({name: getattr(self, name) for name in self._names}))
        self.save()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a state that synchronises it and calls ``func(state, ...)``, again after hosts have changed.

    Raises:
        HorovodInternalError: a collective failed because a worker is gone.
    """

    @functools.wraps(func)
    def call(state: State, *args: Any, **kwargs: Any) -> Any:
        try:
            return func(state, *args, **kwargs)
        except Exception as error:
            if _is_collective_failure(error):
                raise HorovodInternalError(str(error).partition("\n")[0]) from error
            raise

    return run_fn(call, _connect_anew)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Do the work of :func:`run` with another function to connect the workers anew.

    Args:
        func: the training function, whose first argument is the state.
        reset: connects the workers anew.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                state.restore()
                raise HorovodInternalError(
                    f"elastic: {error}; the state is that of the last commit, but workers cannot be replaced yet: "
                    "save it, and start the job again"
                ) from error
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            reset()
            state.on_reset()

    return wrapper


def _is_collective_failure(error: Exception) -> bool:
    """Return whether TensorFlow reports a collective that failed in a ``tf.function``, as only the error's text shows.

    >>> _is_collective_failure(type("UnknownError", (Exception,), {})("{{node a}} StallError: 'x' waited for rank 1"))
    True
    """
    kinds: list[type] = [HorovodInternalError, *HorovodInternalError.__subclasses__()]
    return type(error).__name__ == "UnknownError" and any(f"{kind.__name__}: " in str(error) for kind in kinds)


def _connect_anew() -> None:
    from rueda.hvd import basics  # imports torch

    basics.shutdown()
    basics.init()
