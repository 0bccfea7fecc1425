"""What lab 2 computes: the bytes that travel, the steps of an iteration, and a script that becomes parallel.

===============  =============================================================================================
``scripts``      a serial script with any of the steps that make it parallel, for DDP, Horovod and Keras
``audits``       such a script on two workers: what its ranks print, and what ``rueda check`` finds
``parallelism``  one network trained in three ways on two workers, and the bytes that each way sends
``wire``         the counters of those bytes
``iteration``    the fifteen steps of a training iteration, timed on one worker and on two
``sharing``      which worker reads which example
===============  =============================================================================================
"""
