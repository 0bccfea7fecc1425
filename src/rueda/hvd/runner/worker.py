"""The process of a worker under :func:`rueda.hvd.run`: it fetches the function, calls it and returns the result."""

from __future__ import annotations

import os
import pickle
import runpy
import sys
import traceback
from typing import Any

from rueda.hvd.pickled import dumps
from rueda.hvd.runner.function_server import Outcome, exchange


def main() -> None:
    """Run one worker; an exception is reported to the server and then raised, so that the launcher sees it."""
    server = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("RUEDA_RUN_")}
    try:
        function, args, kwargs = _load(exchange(server))
        result = dumps(function(*args, **kwargs))
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            exchange(server, Outcome(_rank(), dumps(None)))
            raise
        shown = error.with_traceback(_without_own_frames(error))
        text = "".join(traceback.format_exception(shown))
        exchange(server, Outcome(_rank(), None, text, traceback.format_exception_only(error)[-1].strip()))
        raise
    exchange(server, Outcome(_rank(), result))


def _rank() -> int:
    """Return the rank of this worker, which changes in an elastic job."""
    return int(os.environ["RANK"])


def _load(call: bytes) -> Any:
    from rueda.hvd.alias import install

    install()
    function, path, main = pickle.loads(call)
    sys.path += [entry for entry in path if entry not in sys.path]
    if main is not None:
        # The function is pickled by its name in the script, which is therefore loaded; under another name, so that its
        # `if __name__ == "__main__"` is not entered, as multiprocessing does.
        sys.modules["__main__"].__dict__.update(runpy.run_path(main, run_name="__mp_main__"))
    return pickle.loads(function)


def _without_own_frames(error: BaseException) -> Any:
    """Return the traceback without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__ and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
