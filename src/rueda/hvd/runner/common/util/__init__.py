"""``horovod.runner.common.util``, from which scripts import :mod:`.env`."""
