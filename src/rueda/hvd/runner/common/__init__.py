"""``horovod.runner.common``, from which scripts import :mod:`.util.env`."""
