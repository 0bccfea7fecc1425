"""Scripts that somebody else wrote: run a serial one on many workers, unchanged (:mod:`rueda.check.scale`)."""
