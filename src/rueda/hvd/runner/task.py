"""The process of a worker under :func:`rueda.hvd.run`: fetch the function, call it, leave the result."""

from __future__ import annotations

import os
import pickle
import runpy
import sys
import traceback
from typing import Any

from rueda.hvd.pickled import dumps
from rueda.hvd.runner.service import Outcome, Visitor


def main() -> None:
    """Serve as one worker; an exception is handed in first and raised then, for the launcher to see."""
    visitor = Visitor(os.environ)
    for name in [name for name in os.environ if name.startswith("RUEDA_RUN_")]:
        del os.environ[name]  # none of the function's business, nor of what it starts
    rank = int(os.environ["RANK"])
    try:
        function, args, kwargs = _load(visitor.fetch())
        result = dumps(function(*args, **kwargs))
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            visitor.leave(Outcome(rank, dumps(None)))
            raise
        shown = error.with_traceback(_below_here(error))
        text = "".join(traceback.format_exception(type(shown), shown, shown.__traceback__))
        visitor.leave(Outcome(rank, None, text, traceback.format_exception_only(type(error), error)[-1].strip()))
        raise
    visitor.leave(Outcome(rank, result))


def _load(parcel: bytes) -> Any:
    from rueda.hvd.alias import install

    install()
    found = pickle.loads(parcel)
    sys.path += [entry for entry in found["path"] if entry not in sys.path]
    if found["main"] is not None:
        # Named, not carried: the script is loaded under another name, so that its `if __name__ == "__main__"` is not
        # entered, as multiprocessing does.
        sys.modules["__main__"].__dict__.update(runpy.run_path(found["main"], run_name="__mp_main__"))
    return pickle.loads(found["function"])


def _below_here(error: BaseException) -> Any:
    """Leave this file's own frame out of the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__ and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
