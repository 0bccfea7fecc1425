"""PowerSGD (Vogels, Karimireddy & Jaggi 2019, 1905.13727): gradients are averaged as products of thin matrices.

Worker k adds to its gradient the *error* e_k that earlier updates have left out, and takes each tensor as a matrix M_k
of n rows and m columns. With a matrix Q of m rows and r columns that all workers have,

    P = sum_k M_k Q,    P <- orthonormal columns of P,    Q = mean_k M_k^T P,    M' = P Q^T,    e_k = M_k - M'

is one step of the power iteration towards the r largest singular vectors of the mean of all M_k. P and Q are
all-reduced, r (n + m) numbers instead of n m; M' is the gradient of the update on all workers. The Q of one update is
where the next one begins, so that the iteration goes on from update to update. A tensor for which 2 r (n + m) is not
less than n m, such as a bias, is averaged as it is.

``powersgd_rank`` is r. In the first ``powersgd_start`` updates, whose gradients change fast, whole gradients are
averaged. Without the errors PowerSGD need not converge: what one update leaves out may be left out in all.

The arithmetic is that of torch's communication hook. But the first Q belongs to a parameter instead of a bucket, so
that a training, its rehearsal and its continuation have the same numbers whatever buckets DistributedDataParallel
forms. And the norms of P's columns get 1e-8 added (for r <= 2, as in torch), or a layer without a gradient would become
NaN.

**State.** Between two updates there are Q, the same on all workers, and the error of each worker. A checkpoint has
both, the errors up to :data:`MOST_ERROR_BYTES` of all workers. On the same number of workers, real or rehearsed, a
training continues exactly; on another number, or beyond that size, its errors begin at zero: what they held is left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, _should_compress, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from rueda.errors import RecipeError
from rueda.records import Recipe
from rueda.world import World
from rueda.world.seeds import derive

MOST_ERROR_BYTES = 2**28
"""the errors of all workers are kept in a checkpoint up to this size"""
EPSILON = 1e-8
"""is added to the norms by which columns are divided"""
_LEAST_RATE = 2  # torch's default: a matrix with less to gain is not compressed


class Factors(NamedTuple):
    """The factors P [rows, rank] and Q [columns, rank] of a tensor."""

    rows: int
    columns: int
    rank: int


def factors_of(shape: Sequence[int], rank: int) -> Factors | None:
    """Return the factors of a gradient with a shape; None if it is averaged as it is.

    >>> factors_of((16, 8, 3, 3), rank=2), factors_of((10, 4), rank=2), factors_of((100,), rank=2)
    (Factors(rows=16, columns=72, rank=2), None, None)
    """
    rows = shape[0]
    columns = torch.Size(shape[1:]).numel()
    rank = min(rows, columns, rank)
    pays, _, _ = _should_compress(rows, columns, rank, _LEAST_RATE)  # type: ignore[no-untyped-call]
    return Factors(rows, columns, rank) if pays else None


class PowerSGDShapes:
    """The parameters of a model as PowerSGD sees them.

    Args:
        recipe: the rank and the seed.
        parameters: the trained parameters by name, in an order that is the same on all workers.

    Raises:
        RecipeError: a parameter is a single number or not contiguous, which torch's hook cannot take.
    """

    def __init__(self, recipe: Recipe, parameters: Mapping[str, nn.Parameter]) -> None:
        self._seed, self._numbers = recipe.seed, {name: number for number, name in enumerate(parameters)}
        for name, one in parameters.items():
            if one.dim() == 0 or not one.is_contiguous():
                what = "a single number" if one.dim() == 0 else "not contiguous in memory"
                raise RecipeError(
                    f"gradient_compression = 'powersgd' takes parameters as matrices, but {name} is {what}; choose "
                    "another compression"
                )
        self.factors = {name: factors_of(one.shape, recipe.powersgd_rank) for name, one in parameters.items()}
        """of each parameter; None: it is averaged as it is"""

    def first(self, name: str, like: Tensor) -> Tensor:
        """Return the first Q of a parameter: random, and the same on all workers."""
        factors = self.factors[name]
        assert factors is not None, "only what is compressed has factors"
        generator = torch.Generator().manual_seed(derive("powersgd", self._seed, self._numbers[name]) % 2**63)
        drawn = torch.randn(factors.columns, factors.rank, generator=generator, dtype=like.dtype)
        return drawn.to(like.device)


class PowerSGD:
    """torch's hook on a model of several workers, with a state by parameter that a checkpoint can hold.

    Args:
        model: the model; this becomes its communication hook.
        recipe: the rank, and when it begins.
        parameters: the trained parameters by name.
    """

    def __init__(
        self, model: DistributedDataParallel, recipe: Recipe, parameters: Mapping[str, nn.Parameter]
    ) -> None:  # fmt: skip
        self._shapes = PowerSGDShapes(recipe, parameters)
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._state = PowerSGDState(
            model.process_group, matrix_approximation_rank=recipe.powersgd_rank, min_compression_rate=_LEAST_RATE,
            start_powerSGD_iter=recipe.powersgd_start, orthogonalization_epsilon=EPSILON,
        )  # fmt: skip
        self._buckets: dict[int, list[str]] = {}  # the parameters of each bucket that is compressed, by its index
        self._loaded: dict[str, dict[str, Tensor]] = {"factors": {}, "errors": {}}  # for buckets that are not, yet
        model.register_comm_hook(self, lambda exchange, bucket: exchange._exchange(bucket))  # DDP reads annotations

    def begin(self, step: int) -> None:
        """Begin an update, after so many updates before it; 0 leaves its gradients whole."""
        self._state.iter = step

    def _exchange(self, bucket: Any) -> torch.futures.Future[Tensor]:
        state = self._state
        if state.iter >= state.start_powerSGD_iter and bucket.index() not in self._buckets:
            self._open(bucket)
        done: torch.futures.Future[Tensor] = powerSGD_hook(state, bucket)
        return done

    def _open(self, bucket: Any) -> None:
        """Begin to compress a bucket, with the state that was loaded or else the first Q of each parameter."""
        index, buffer = bucket.index(), bucket.buffer()
        names = self._buckets[index] = [self._names[parameter] for parameter in bucket.parameters()]
        compressed = list(self._compressed(names))
        found = [self._loaded["factors"].pop(name, None) for name, _ in compressed]
        starts = [
            self._shapes.first(name, buffer) if one is None else one.to(buffer)
            for (name, _), one in zip(compressed, found, strict=True)
        ]
        self._state.q_memory_dict[index] = torch.cat([buffer.new_empty(0), *(one.flatten() for one in starts)])
        self._state.p_memory_dict[index] = buffer.new_empty(sum(one.rows * one.rank for _, one in compressed))
        errors = [self._loaded["errors"].pop(name, None) for name in names]
        if all(one is not None for one in errors):
            self._state.error_dict[index] = torch.cat([one.to(buffer).flatten() for one in errors if one is not None])

    def _compressed(self, names: Sequence[str]) -> Iterator[tuple[str, Factors]]:
        """Yield what is compressed of a bucket in the order of torch's memory: matrices of one shape lie together."""
        by_shape: dict[tuple[int, int], list[tuple[str, Factors]]] = {}
        for name in names:
            factors = self._shapes.factors[name]
            if factors is not None:
                by_shape.setdefault(factors[:2], []).append((name, factors))
        for same in by_shape.values():
            yield from same

    def state_dict(self, world: World) -> dict[str, Any]:
        """Return Q of each parameter and the errors of all workers, which must all call it."""
        factors, errors = dict(self._loaded["factors"]), dict(self._loaded["errors"])
        for index, names in self._buckets.items():
            compressed = list(self._compressed(names))
            sizes = [one.columns * one.rank for _, one in compressed]
            parts = torch.split(self._state.q_memory_dict[index], sizes)
            for (name, one), part in zip(compressed, parts, strict=True):
                factors[name] = part.view(one.columns, one.rank).clone()
            shapes = {name: parameter.shape for parameter, name in self._names.items()}
            cuts = torch.split(self._state.error_dict[index], [shapes[name].numel() for name in names])
            errors |= {name: cut.view(shapes[name]).cpu() for name, cut in zip(names, cuts, strict=True)}
        num_bytes = world.size * sum(one.nbytes for one in errors.values())
        return {"factors": factors, "errors": world.all_gather_object(errors) if num_bytes <= MOST_ERROR_BYTES else []}

    def load_state_dict(self, state: Mapping[str, Any] | None, world: World) -> None:
        """Continue from a state; without one, or with errors of another number of workers, these begin at zero."""
        self._buckets.clear()
        for memory in (self._state.p_memory_dict, self._state.q_memory_dict, self._state.error_dict):
            memory.clear()
        errors = [] if state is None else state["errors"]
        own = errors[world.rank] if len(errors) == world.size else {}
        self._loaded = {"factors": dict(state["factors"]) if state is not None else {}, "errors": dict(own)}
