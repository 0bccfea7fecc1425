"""``rueda check``: runs somebody's distributed script, unchanged, and names the mistakes that its workers make.

Each worker observes itself (:mod:`.watch`) and notes in a journal what it reads, computes, exchanges and writes. The
driver compares the journals (:mod:`.judge`): what must be the same on all workers, what must differ, and what one of
them alone may do. No judgement is made in the workers, and the observation needs no collective, so that the script runs
as it would without.
"""
