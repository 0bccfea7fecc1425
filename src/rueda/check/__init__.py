"""Scripts that somebody else wrote: run a serial one unchanged (:mod:`.scale`), or convert it (:mod:`.convert`)."""
