"""What the journals of all workers say together: each check passes, fails, or was not seen.

Each file judges one subject and states its rules. A rule accuses only what it has seen with certainty; where a script
may be right for a reason that cannot be seen, the check counts as not seen.
"""
