"""Files that survive a crash: atomic writes, and a lock that gives a folder one writer at a time."""
