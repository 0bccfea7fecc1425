"""The module that ``import horovod`` loads where this folder is on the path: a genuine Horovod if installed, or Rueda.

It is the only file of its folder, so that the folder on ``PYTHONPATH`` provides this one name and nothing else.
"""

from __future__ import annotations

if __name__ == "horovod":
    try:
        from rueda.hvd.alias import replace_shim
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "horovod: Rueda provides this module here, but is not installed for this Python "
            f"({error}); run `pip install rueda` for it, or set RUEDA_HOROVOD=0"
        ) from None
    replace_shim()
