"""The answers of the labs, apart from the notebooks: one file a lab, with ``ANSWERS`` and ``CHECKS`` by key.

A right number or choice may be a function, which computes it through the library; so it changes with the library. The
files import the library inside such functions: reading them loads neither torch nor marimo.
"""
