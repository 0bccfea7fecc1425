"""Stalls: no worker waits for ever in a collective, and every worker knows for whom it waits.

A worker that is stopped (SIGSTOP, a frozen virtual machine, a host that lost its network) keeps its connections open,
so the collectives of the others neither end nor fail. Every worker therefore has a *watcher*, a thread that costs
nothing while the training advances:

1. It looks every few seconds whether a collective of this worker has been under way for longer than the *warning* time
   (``--stall-warning``, 60 s). What is under way comes from torch's flight recorder and from other *sources*.
2. If so, it asks the watchers of the other workers, each over a connection of its own, what they are doing. No worker
   needs another one for this, so it works while rank 0, which serves torch's store, is stopped.
3. The lowest rank that waits prints one report, rank by rank: who waits, who has not reached the collective, who does
   not answer and why, with the Python stacks of a rank that waits and of those that are missing.
4. If the collective is still under way after the *timeout* (``--stall-timeout``, 30 minutes; 0: never), the workers
   that wait end with exit status 124, and the launcher ends the rest. Other sources may raise an error instead.

Work that the program itself declares, in :meth:`rueda.World.on_main` and :meth:`rueda.World.local_main_first`, may take
longer than the timeout as long as the worker that does it answers: a download may.

===================  =====================================================================================
file                 concept
===================  =====================================================================================
``limits``           the two times, from ``RUEDA_STALL_WARNING`` and ``RUEDA_STALL_TIMEOUT``
``waits``            the collectives that are under way in this process
``stacks``           Python stacks of this process and of others on this host; the state of a process
``peers``            the connections between the watchers: questions, answers, and the proof of the sender
``flight_recorder``  dumps of torch's recorder (``--stall-dump``), and the time limits of NCCL itself
``report``           what is said about a stall
``watcher``          the thread
===================  =====================================================================================

torch's ``monitored_barrier`` also names missing ranks, but only at a barrier of Gloo and only through rank 0.
"""
