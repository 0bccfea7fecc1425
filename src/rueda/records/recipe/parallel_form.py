"""The form of parallel training that a recipe names, and the mesh of workers that it means.

::

    data                    every worker has the whole model and other examples
    sharded                 the same examples; every worker keeps a part of each parameter, gradient and optimizer state
    pipeline                every worker has some of the layers; all have the same examples
    tensor                  every worker has a part of the matrices of each layer; all have the same examples
    data 2 x tensor 2       two groups of two workers; the groups divide the examples, the workers of a group the model

The workers of a mesh are numbered with the form that is named last changing fastest: of ``data 2 x tensor 2``, ranks 0
and 1 share a model, and so do ranks 2 and 3.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

SINGLE_FORMS = ("data", "sharded", "pipeline", "tensor")
COMBINATIONS = (("data", "sharded"), ("data", "pipeline"), ("data", "tensor"), ("sharded", "tensor"))
KNOWN_FORMS = "data, sharded, pipeline, tensor, or one of " + ", ".join(
    f"'{one} 2 x {other} 2'" for one, other in COMBINATIONS
)
"""what a recipe may name, for messages"""

PIPELINES_ALONE = {"pipeline_schedule": "1f1b", "micro_batches": None}
"""the fields of a recipe that only a pipeline uses, and their defaults"""


class Mesh(NamedTuple):
    """How many workers each form has; their product is the number of workers."""

    data: int = 1
    sharded: int = 1
    pipeline: int = 1
    tensor: int = 1

    @property
    def workers(self) -> int:
        """The number of workers."""
        return prod(self)

    @property
    def replicas(self) -> int:
        """How many parts the global batch has: each pipeline or tensor group computes one of them."""
        return self.data * self.sharded

    @property
    def sharers(self) -> int:
        """How many workers compute one of these parts together, neighbours in rank order."""
        return self.pipeline * self.tensor

    @property
    def divides_model(self) -> bool:
        """Whether a worker keeps a part of the model only."""
        return self.workers > self.data

    @property
    def kinds(self) -> tuple[str, ...]:
        """The forms with more than one worker.

        >>> Mesh(data=2, tensor=2).kinds, Mesh().kinds
        (('data', 'tensor'), ())
        """
        return tuple(name for name, size in self._asdict().items() if size > 1)

    @property
    def form(self) -> str:
        """The form as a recipe writes it.

        >>> Mesh(sharded=4).form, Mesh(data=2, tensor=2).form, Mesh().form
        ('sharded', 'data 2 x tensor 2', 'data')
        """
        used = self.kinds
        if len(used) < 2:
            return next(iter(used), "data")
        return " x ".join(f"{name} {getattr(self, name)}" for name in used)


def is_known_form(parallel: str) -> bool:
    """Return whether a recipe may name this form.

    >>> [is_known_form(form) for form in ("data", "tensor", "data 2 x pipeline 2", "data 0 x pipeline 2", "both")]
    [True, True, True, False, False]
    """
    if parallel in SINGLE_FORMS:
        return True
    sizes = _sizes(parallel)
    return tuple(sizes) in COMBINATIONS and min(sizes.values()) > 0 and list(sizes.values())[1] > 1


def has_pipeline(parallel: object) -> bool:
    """Return whether a form is a pipeline or has one.

    >>> [has_pipeline(form) for form in ("pipeline", "data 2 x pipeline 2", "sharded")]
    [True, True, False]
    """
    return isinstance(parallel, str) and "pipeline" in parallel


def mesh_of(parallel: str, workers: int) -> Mesh:
    """Return the mesh of a known form; a single form takes all workers.

    >>> mesh_of("pipeline", 4), mesh_of("data 2 x tensor 2", 4).replicas
    (Mesh(data=1, sharded=1, pipeline=4, tensor=1), 2)
    """
    return Mesh(**{parallel: workers}) if parallel in SINGLE_FORMS else Mesh(**_sizes(parallel))


def _sizes(parallel: str) -> dict[str, int]:
    """Return the sizes by name of a combination such as ``data 2 x tensor 2``; empty if it is written otherwise."""
    parts = [part.split(" ") for part in parallel.split(" x ")]
    if any(len(part) != 2 or not (part[1].isascii() and part[1].isdigit()) for part in parts):
        return {}
    return {name: int(size) for name, size in parts}
