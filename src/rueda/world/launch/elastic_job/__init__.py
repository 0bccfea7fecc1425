"""Jobs whose number of workers changes while they run: ``rueda run --min-np 1 --max-np 8``.

::

    driver ──► store host            (on the driver's host: torch's store, so that no lost host takes it away)
       ├─────► agent on this host ──► members 0, 1
       └─ssh─► agent on server2   ──► members 2, 3

The driver decides alone who is in the job. Each process that it starts is a *member*, with a number of its own; each
*generation* gives ranks to some of them. Agents carry out its commands and pass on what members say
(:mod:`rueda.world.elastic`); they do not load torch.

================  ===============================================================================================
``settings``      the options of an elastic job
``placement``     which member gets which rank
``hosts_state``   a host: its agent, when it is tried again, whether it is excluded
``discovery``     the program that lists the hosts, again and again
``members``       a process of the job, as the driver knows it
``history``       the failures so far: limits, pauses, repeated errors
``hosts_driver``  the driver's care for hosts, on the event loop of :mod:`rueda.world.launch.driver`
``driver``        the driver's decisions about workers
``agent``         the process on each host
``store_host``    the process that serves the store
================  ===============================================================================================
"""
