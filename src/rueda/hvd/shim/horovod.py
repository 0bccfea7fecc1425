"""``import horovod`` where this folder is on the path: a genuine Horovod if one is installed, else Rueda's.

It stands alone in its folder, so that the folder on ``PYTHONPATH`` brings this one name and nothing else.
"""

from __future__ import annotations

if __name__ == "horovod":
    try:
        from rueda.hvd.alias import take_place
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "horovod: Rueda stands in for it here but is not installed for this interpreter "
            f"({error}); run `pip install rueda` for it, or set RUEDA_HOROVOD=0"
        ) from None
    take_place()
