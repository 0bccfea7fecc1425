"""What the interfaces of all frameworks share, in Horovod's modules: exceptions, process sets, utilities."""
