"""Atomic writes, reading with a limit, a lock for a folder, the cache folder, and the resolution of relative paths."""
