"""Horovod's small tools; scripts import :mod:`.env` from here."""
