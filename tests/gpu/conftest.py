"""Modules that belong into a process with an impostor device: pytest must not import them to look for doctests."""

collect_ignore = ["impostor.py", "recorder.py"]
