"""The version that scripts compare: Horovod's last release, whose interface this is, with a local suffix."""

from __future__ import annotations

__version__ = "0.28.1+rueda"
