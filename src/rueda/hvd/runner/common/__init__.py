"""Horovod's place for what its launchers share; scripts import :mod:`.util.env` from here."""
