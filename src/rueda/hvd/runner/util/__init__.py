"""Horovod's small tools; scripts import :mod:`.threads` from here."""
