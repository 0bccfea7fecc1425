"""A worker of an elastic job, whose number of workers changes while it runs.

An elastic job (``rueda run --min-np 1 --max-np 8``) goes through *generations*. A generation is a list of members, each
a process with a rank; the driver decides alone which they are. When a member is lost, or a host comes, those that can
survive keep their process: they leave the present world and open that of the next generation. A training loop does so
with these functions::

    elastic.register()                        # this process can survive a failure of others
    world = rueda.init()
    while step < last:
        try:
            with elastic.guard():
                train(step)
                if commits(step) and step < last and world.all_reduce(torch.tensor(elastic.updates()), "max"):
                    world = elastic.reform(failed=False)
        except elastic.PeerLost:
            world = elastic.reform(failed=True)
            restore_last_commit()
        # after each reform: the ranks and sizes are new, and rank 0 is a survivor, if there is one

After the last step nobody may be let in: the others end, and a fresh process, alone, would train from the beginning.

================  =========================================================================================
``membership``    whether this process is a member, and the variables by which it knows
``link``          the connection to the agent of its host, by which it learns of losses and of its new rank
``broken``        how collectives that wait for a lost peer are made to fail
``sockets``       the connections of Gloo, which has no way to abort a collective
``guarding``      errors that mean that a peer is gone: :class:`PeerLost`
``reforming``     the change to the next generation
================  =========================================================================================

A fresh process that joins a running job waits in its first ``rueda.init`` until the others let it in, which they do
when they call :func:`reform`. Processes that never call :func:`register` are stopped and started anew when one of them
fails, as torchrun does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.errors import PeerLost
    from rueda.world.elastic.broken import on_break, on_leave
    from rueda.world.elastic.guarding import guard
    from rueda.world.elastic.membership import generation, is_elastic
    from rueda.world.elastic.reforming import announce, failing, progress, reform, register, updates

__all__ = [
    "PeerLost", "announce", "failing", "generation", "guard", "is_elastic", "on_break", "on_leave", "progress",
    "reform", "register", "updates",
]  # fmt: skip

__getattr__ = lazily(
    __name__,
    {
        "PeerLost": "guarding",
        "announce": "reforming",
        "failing": "reforming",
        "generation": "membership",
        "guard": "guarding",
        "is_elastic": "membership",
        "on_break": "broken",
        "on_leave": "broken",
        "progress": "reforming",
        "reform": "reforming",
        "register": "reforming",
        "updates": "reforming",
    },
)
