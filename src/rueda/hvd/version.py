"""The version that scripts compare: the last Horovod whose interface this is, and whose work it is."""

from __future__ import annotations

__version__ = "0.28.1+rueda"
