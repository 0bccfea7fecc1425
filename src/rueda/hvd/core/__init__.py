"""The core of Horovod's interface: collectives that are matched by name, for any framework.

====================  ================================================================================================
file                  concept
====================  ================================================================================================
``lifecycle``         starts and stops the engine of this process
``engine``            submits collectives and waits for them; a background thread makes progress while the script runs
``entries``           a submitted collective, and the signature on which all ranks must agree
``tensor_queue``      the collectives that this rank has submitted and that have not finished
``repetitions``       all-reduces that are repeated in every step, negotiated by one bit each
``settings``          the ``HOROVOD_*`` environment variables
``channel``           one control channel: a socket between a rank and rank 0
``control_channels``  all control channels of a rank, and the wakeup of threads that wait for messages
``alarm``             wakes the background thread when submissions have been collected long enough
``messages``          the messages between a rank and the coordinator, one named tuple each
``coordinator``       on rank 0: matches names, detects mismatches, handles joined ranks, reports stalls
``negotiation``       sends requests to the coordinator and executes its responses
``execute``           runs released collectives: inline payloads, fusion buffers, process groups
``fusion``            where tensors that are reduced together lie in a buffer
``collectives``       all-gather, broadcast, all-to-all and reduce-scatter
``reduce``            sum, average, minimum, maximum and product of every dtype
``adasum``            Adasum, locally and over a process group
``process_groups``    the process groups that carry large tensors, created when first needed
``stalls``            what is in flight, for the watcher of this worker
``bucket_reducer``    all-reduce of the same tensors in every step, in fixed buckets and without negotiation
``timeline``          a record of all collectives in Chrome's trace format
====================  ================================================================================================

The core handles torch tensors, numbers and names. An interface for another framework passes CPU tensors that share
memory with its arrays (``torch.from_numpy``, DLPack).
"""
