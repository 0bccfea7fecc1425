"""The sizes of the ghosts of a batch. Does not import torch: the Keras layer needs them as well."""

from __future__ import annotations

from rueda.errors import RecipeError


def ghost_sizes(num_examples: int, ghost_batch: int, values_per_example: int = 1) -> tuple[int, ...]:
    """Split a batch into ghosts of `ghost_batch` examples; the last one may be smaller.

    A remainder of a single value per channel has no variance, and `torch` raises an error for it. Here it joins the
    ghost before it, so that an incomplete last batch does not end the training with an error.

    Args:
        num_examples: examples in the batch.
        ghost_batch: examples in a ghost.
        values_per_example: values per channel in one example (height x width for an image).

    >>> ghost_sizes(96, 32), ghost_sizes(100, 32), ghost_sizes(20, 32)
    ((32, 32, 32), (32, 32, 32, 4), (20,))
    >>> ghost_sizes(65, 32), ghost_sizes(65, 32, values_per_example=49)
    ((32, 33), (32, 32, 1))
    """
    full, rest = divmod(num_examples, ghost_batch)
    sizes = [ghost_batch] * full
    if rest * values_per_example == 1 and sizes:
        sizes[-1] += rest
    elif rest:
        sizes.append(rest)
    return tuple(sizes)


def checked_ghost_batch(ghost_batch: object) -> int:
    """Return the ghost size if it is valid; below 2 an error is raised, since a single value has no variance.

    >>> checked_ghost_batch(32)
    32
    """
    if isinstance(ghost_batch, bool) or not isinstance(ghost_batch, int) or ghost_batch < 2:
        raise RecipeError("ghost_batch", expected="a whole number of at least 2", got=ghost_batch, do="use 16 to 128")
    return ghost_batch
