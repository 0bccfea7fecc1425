"""``DistributedOptimizer``: an optax transformation whose gradients are averaged over all workers.

``update`` reduces the gradients of all leaves in one collective and gives the result to the wrapped transformation.
With ``backward_passes_per_step`` the gradients of that many updates are accumulated first, as by ``optax.MultiSteps``:
updates in between are zeros. Unlike there, where the wrapped transformation runs in every pass and its result is
masked, the collective and the wrapped transformation run in the last pass only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rueda.errors import MissingExtra
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.jax.collectives import allreduce
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.reduce_ops import Adasum, Average

try:
    import optax
except ModuleNotFoundError:
    raise MissingExtra("optax", "jax") from None


class AccumulationState(NamedTuple):
    """The state of a distributed optimizer with several backward passes per step."""

    num_passes: Any  # since the last step
    gradients: Any  # their sum
    inner: Any  # the state of the wrapped transformation


def DistributedOptimizer(
    optimizer: optax.GradientTransformation,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = True,
    process_set: ProcessSet = global_process_set,
) -> optax.GradientTransformationExtraArgs:
    """Make a transformation whose gradients are averaged over all workers.

    Args:
        optimizer: any optax transformation.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        backward_passes_per_step: the number of updates whose gradients are accumulated before they are reduced.
        op: Average, Sum, Adasum, Min, Max or Product. Adasum combines the updates of the ranks, not their gradients.
        gradient_predivide_factor: with Average, gradients are divided by this factor before the sum and by the number
            of workers over this factor after it, which avoids overflow in half precision.
        average_aggregated_gradients: divide accumulated gradients by the number of passes, as optax does; Horovod's
            other optimizers add them up.
        process_set: the ranks that take part; a rank outside trains by itself.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor: expected op Average with it, got another; leave it at 1.0")
    if gradient_predivide_factor <= 0 or backward_passes_per_step < 1:
        raise ValueError(
            "gradient_predivide_factor and backward_passes_per_step: expected more than 0, got "
            f"{gradient_predivide_factor} and {backward_passes_per_step}; correct them"
        )
    reduction = _allreduce(
        compression=compression,
        op=op,
        prescale_factor=1 / gradient_predivide_factor,
        postscale_factor=gradient_predivide_factor,
        process_set=process_set,
    )
    chained = optax.chain(optimizer, reduction) if op == Adasum else optax.chain(reduction, optimizer)
    if backward_passes_per_step == 1:
        return chained
    return _accumulate(chained, backward_passes_per_step, average_aggregated_gradients)


def _allreduce(*, process_set: ProcessSet, **options: Any) -> optax.GradientTransformation:
    """Make the transformation that reduces the gradients of all leaves in one collective."""

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if process_set.size() == 1 or not process_set.included():
            return gradients, state
        return allreduce(gradients, process_set=process_set, **options), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def _accumulate(
    inner: optax.GradientTransformationExtraArgs, num_passes: int, average: bool
) -> optax.GradientTransformationExtraArgs:
    def init(params: Any) -> AccumulationState:
        return AccumulationState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), inner.init(params))

    def update(
        gradients: Any, state: AccumulationState, params: Any = None, **extra: Any
    ) -> tuple[Any, AccumulationState]:
        total = jax.tree.map(jnp.add, state.gradients, gradients)
        zeros = jax.tree.map(jnp.zeros_like, gradients)

        def step() -> tuple[Any, AccumulationState]:
            given = jax.tree.map(lambda leaf: leaf / num_passes, total) if average else total
            updates, after = inner.update(given, state.inner, params, **extra)
            return updates, AccumulationState(jnp.zeros((), jnp.int32), zeros, after)

        def wait() -> tuple[Any, AccumulationState]:
            return zeros, AccumulationState(state.num_passes + 1, total, state.inner)

        is_last = state.num_passes == num_passes - 1
        if isinstance(is_last, jax.core.Tracer):
            chosen: tuple[Any, AccumulationState] = jax.lax.cond(is_last, step, wait)
            return chosen
        return step() if is_last else wait()  # an eager cond would be compiled anew in every update

    return optax.GradientTransformationExtraArgs(init, update)
