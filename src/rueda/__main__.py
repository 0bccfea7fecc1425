"""``python -m rueda`` is the ``rueda`` command."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Python has put the working directory first. As for the installed command, it is no place of modules: a task file
    # there may be called numbers.py, as a module of the standard library is.
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    from rueda.cli import main

    main()
