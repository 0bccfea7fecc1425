"""Collectives of CPU tensors among workers through memory that all workers of a host have mapped.

Gloo sends every byte through sockets of the loopback interface. Here each rank copies its tensor into a *slot* of a
common memory segment, and reads the others' slots with torch's own kernels: no socket, no system call per byte.

========================  ====================================================================================
file                      what it holds
========================  ====================================================================================
``segment.py``            the memory, and who is still alive
``waiting.py``            how a rank waits for the counters of the others
``futex.py``              sleeping until another process changes a number, and waking it
``reductions.py``         sum, min, max and product of the ranks' parts, in rank order
``operations.py``         all-reduce, broadcast, all-gather and reduce-scatter of one chunk
``reducing_group.py``     all-reduces through the slots, as groups on one host and on several have them
``group.py``              the ranks of one host, and the order of their chunks
``host_group.py``         the ranks of several hosts: shared memory within a host, sockets between the hosts
``routes.py``             which elements of a chunk go between which hosts
``links.py``              the sockets between the hosts
``wakeups.py``            how ranks of a host wake each other while they also wait for sockets
``fixed_buckets.py``      the same tensors in every step, in slots of their own
``transport.py``          whether shared memory or Gloo is used (``RUEDA_TRANSPORT``), and the connection
``gradients.py``          the exchange of DistributedDataParallel's buckets
========================  ====================================================================================

**Memory.** The group's first rank creates an anonymous file in memory (``memfd_create``), and the others open it
through ``/proc``. It has no name in any file system, so nothing can be left behind in ``/dev/shm``, whatever happens to
the processes, and it is not limited by the size of ``/dev/shm``, which is 64 MB in many containers.

**Chunks.** A slot holds two chunks of bounded size (2 MB), so that tensors of any size pass through a small segment,
and a rank may fill one chunk while the others still read the one before. Two ranks each read the other's chunk and
write the sum into the tensor at once. More ranks each reduce a part of the chunk into the first slot, and then copy the
whole result out of it: less is read that way.

**Counters.** Each rank has a cache line of 64-bit counters that only it writes and that only rise: how many chunks it
has posted, combined and finished. A rank stores data first and its counter afterwards, and reads another's counter
first and its data afterwards. Aligned 8-byte loads and stores are atomic on all 64-bit machines. On x86-64 the hardware
keeps stores in order, and loads in order, so nothing else is needed. Other processors, such as ARM's, may reorder both:
there a memory fence stands between data and counter (see :mod:`.waiting`), and since this could not be tried on such a
machine, shared memory is used there only if ``RUEDA_TRANSPORT=shared`` asks for it.

**The same bits everywhere.** Every element is rank 0's, plus rank 1's, and so on, whatever the size of the tensor and
whichever rank adds it. float16 and bfloat16 are added in float32 and rounded once.
"""
