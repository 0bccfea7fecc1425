"""The core of the Horovod-shaped front: collectives that are matched by name, for any framework.

==================  ==================================================================================================
file                concept
==================  ==================================================================================================
``entries``         a collective in flight: what a rank submits, what the ranks must agree on
``settings``        the ``HOROVOD_*`` variables
``star``            the control channel: one socket from every rank to rank 0
``messages``        what a rank and rank 0 say to each other, a named tuple each
``coordinator``     rank 0 matches names, finds mismatches, serves joined ranks, reports stalls
``engine``          submits and waits; a thread that goes on while the script computes
``ledger``          what this rank has submitted and not yet seen the end of
``wires``           this rank's sockets, and what wakes it
``negotiation``     what is said over the wires: rank 0 answers, all obey
``execute``         runs what the coordinator has released: small payloads that rode along, fused buffers, groups
``movers``          gathers, broadcasts, exchanges and scatters
``reduce``          sums, means, minima, maxima and products of every type
``adasum``          the sum that keeps directions apart
``groups``          the process groups that carry the data, made when first needed
``known_order``     buckets whose order all ranks have agreed on, so that nothing is negotiated any more
``timeline``        what happened when, in Chrome's trace format
==================  ==================================================================================================

It knows torch tensors, numbers and names. A front for another framework hands it CPU tensors that share memory with
its arrays (``torch.from_numpy``, DLPack).
"""
