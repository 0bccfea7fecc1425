"""What the user is told: lines of rank 0 on standard error, each once, and the refusal that ends the job."""

from __future__ import annotations

import sys
from typing import NoReturn

from rueda.errors import ScaleError


class Notes:
    """Prints notes, and keeps a refusal, so that a script that catches it cannot go on.

    Args:
        speaks: whether this process prints: rank 0 does.
    """

    def __init__(self, *, speaks: bool) -> None:
        self._speaks = speaks
        self.said: list[str] = []
        """every note so far, also where this process does not print"""
        self.refusal: ScaleError | None = None

    def say(self, text: str) -> None:
        """Print a line, unless it has been printed before."""
        if text not in self.said:
            self.said.append(text)
            if self._speaks:
                print(f"rueda scale: {text}", file=sys.__stderr__, flush=True)

    def refuse(self, text: str) -> NoReturn:
        """Raise the error that ends the job; every later collective raises it again."""
        self.refusal = ScaleError(text)
        raise self.refusal

    def check(self) -> None:
        """Raise the refusal again, if there was one and the script has caught it."""
        if self.refusal is not None:
            raise self.refusal
