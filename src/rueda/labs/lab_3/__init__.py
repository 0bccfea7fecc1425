"""What lab 3, *Scaling the batch*, computes: trainings small enough to answer in a second, and stored ones."""
