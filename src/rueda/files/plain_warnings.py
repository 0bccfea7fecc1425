"""Warnings as a user of a command reads them: one line, without the place in Rueda's source code."""

from __future__ import annotations

import warnings


def print_plain_warnings() -> None:
    """Let this process print a warning as ``warning: MESSAGE``; a line of source code says nothing to a user."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
