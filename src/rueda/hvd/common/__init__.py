"""What the fronts of all frameworks share, where Horovod has it: exceptions, process sets, helpers."""
