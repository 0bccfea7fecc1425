"""What a worker of ``rueda check`` observes while the script runs, and notes in its journal.

Each file watches one thing: the loaders, the optimizers' steps, the modules, the collectives, the files, the machine.
They look closely at the first steps only; later a step costs a few counters.
"""
