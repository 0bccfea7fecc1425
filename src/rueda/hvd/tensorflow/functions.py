"""Broadcast and gather variables and objects; TensorFlow 1's sessions are accepted where they are not needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rueda.hvd.bridge.tensorflow import tf
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.tensorflow.mpi_ops import assign_broadcast
from rueda.hvd.torch import functions as objects


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Assign one rank's values to variables: of a model, of an optimizer, of TensorFlow or of Keras.

    Args:
        variables: the variables, in the same order on all ranks.
        root_rank: the rank whose values are broadcast.
        process_set: the ranks that take part.
        inplace: accepted for compatibility with Horovod: variables are always assigned.

    Returns:
        None in eager mode; in a graph of TensorFlow 1 the operation, which a session has to run.
    """
    made = assign_broadcast(variables, root_rank, None, process_set)
    return None if tf.executing_eagerly() else tf.group(*made)


def broadcast_global_variables(root_rank: int) -> Any:
    """Assign one rank's values to all global variables of a TensorFlow 1 graph; return the operation that does it.

    In TensorFlow 2's eager mode there is no list of all variables: it raises an error there, as in Horovod.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables: expected a TensorFlow 1 graph, got eager mode; "
            "use hvd.broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Assigns one rank's values to all global variables when a TensorFlow 1 session starts.

    Args:
        root_rank: the rank whose values are broadcast.
        device: accepted for compatibility with Horovod: values are sent from the device on which they are.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank

    def begin(self) -> None:
        """Add the operation to the graph."""
        self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the operation."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return one rank's object on every rank.

    Args:
        obj: on the root, any object that can be pickled; ignored on the other ranks.
        root_rank: the rank whose object is broadcast.
        session: accepted for compatibility with Horovod: no TensorFlow session is needed.
        name: the name of the collective.
        process_set: the ranks that take part.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Return a function that broadcasts the object that it is given; the arguments are those of `broadcast_object`."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, in rank order, on every rank.

    Args:
        obj: any object that can be pickled.
        session: accepted for compatibility with Horovod: no TensorFlow session is needed.
        name: the name of the collective.
        process_set: the ranks that take part.
    """
    return objects.allgather_object(obj, name, process_set)
