"""Files that survive a crash: atomic writes, a lock that gives a folder one writer at a time; and where they lie."""
