"""``horovod.runner.util``, from which scripts import :mod:`.threads`."""
