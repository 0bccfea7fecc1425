"""Forms of parallel training besides data parallelism."""
