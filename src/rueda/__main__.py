"""``python -m rueda`` is the ``rueda`` command."""

from __future__ import annotations

from rueda.cli import main

if __name__ == "__main__":
    main()
