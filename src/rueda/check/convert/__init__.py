"""``rueda convert``: a serial script becomes a parallel one, as a diff that says why.

The steps are those that one makes by hand, each with a comment in the text: connect the workers, give each a device,
share out the data, wrap the model or the optimizer, let one worker write, and average what is printed. What is not sure
becomes a ``TODO(rueda)`` in the text and a warning, not a guess.

The script is read with Python's own :mod:`ast` and edited by position: every byte that need not change stays as it is,
as with a library for concrete syntax trees, but no further package is needed, and the script is understood by the same
parser that runs it. What comes out is parsed again before it is printed.
"""

from __future__ import annotations

from rueda.check.convert.conversion import Conversion, convert

__all__ = ["Conversion", "convert"]
