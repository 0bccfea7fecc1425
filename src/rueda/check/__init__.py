"""Scripts that somebody else wrote.

A serial one is run on many workers, unchanged (:mod:`.scale`), or converted (:mod:`.convert`); a distributed one is
checked (:mod:`.audit`).
"""
