"""The parts of a :class:`~rueda.train.recorder.Recorder`, each of which does one thing.

==================  ===================================================================================
``opening``         a run folder is begun, resumed, or continued after an elastic job changed
``epoch_progress``  what this process has trained of the current epoch, and how fast
``rows``            the figures of a training as rows
``run_writer``      rows, noise scales and incidents go to the run folder and to the trackers
``display``         what rank 0 shows on the terminal
``recovery``        workers that differ and weights that are not finite: repair, go back, or end
==================  ===================================================================================
"""
