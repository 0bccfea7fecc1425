"""Collectives of pytrees, eager and within ``jit``.

======================  ===================================================================  =====================
collective              what every rank receives, leaf by leaf                               leaves are sent
======================  ===================================================================  =====================
``allreduce``           the average, sum, minimum, maximum, product or Adasum of all ranks   in one collective
``allgather``           the arrays of all ranks, concatenated along the first dimension      in one collective
``reducescatter``       its part of the reduced array                                        in one collective
``broadcast``           the array of one rank                                                one after the other
``alltoall``            from every rank the part that is meant for it                        one after the other
``barrier``, ``join``   nothing: they block until every rank has called them
======================  ===================================================================  =====================

They work in ``jit``, ``grad``, ``value_and_grad``, ``scan``, ``cond`` and ``while_loop``; gradients have Horovod's
factors (:mod:`rueda.hvd.torch.passes`). Each call runs once on each rank, in the order of the program
(:mod:`rueda.hvd.bridge.jax`), so ``vmap``, ``pmap``, ``shard_map`` and ``checkpoint``, which would repeat it, are
refused. Within ``jit`` shapes are constants: first dimensions may differ between the ranks only outside of it.

Ranks match collectives by ``name``; those without a name are matched by their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from rueda.hvd import basics
from rueda.hvd.bridge.jax import host_call
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch import barrier_ops, passes
from rueda.hvd.torch.collective_entries import Reduction, suffixed
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.reduce_ops import Average

Shape = tuple[int, ...]


def allreduce(
    tree: Any,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce the ranks' pytrees into a new one, which is the same on all ranks.

    Args:
        tree: arrays of the same shape and type on all ranks.
        name: the name by which ranks match the collective; None: it is matched by the order of the calls.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        op: Average (the default), Sum, Adasum, Min, Max or Product. Averages of integers are rounded towards zero.
        prescale_factor: every rank's arrays are multiplied by it before the reduction.
        postscale_factor: the results are multiplied by it.
        process_set: the ranks that take part.
    """
    collective = passes.Allreduce(name, Reduction(process_set, op, prescale_factor, postscale_factor))
    return _run_tree(collective, tree, lambda shape: shape, process_set, compression)


def allgather(tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return all ranks' arrays concatenated along the first dimension; a scalar counts as one row."""
    num_ranks = process_set.size()
    return _run_tree(
        passes.Allgather(name, process_set), tree, lambda shape: (num_ranks * (*shape, 1)[0], *shape[1:]), process_set
    )


def reducescatter(
    tree: Any,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce the ranks' pytrees and return this rank's part of the rows of each array.

    Args:
        tree: arrays of the same shape and type on all ranks; rows that do not divide evenly go to the first ranks.
        name: the name by which ranks match the collective; None: it is matched by the order of the calls.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        op: Average (the default), Sum, Min, Max or Product; gradients need Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: every rank's arrays are multiplied by it before the reduction.
        postscale_factor: the results are multiplied by it.
    """
    num_ranks, rank = process_set.size(), process_set.rank()
    collective = passes.Reducescatter(name, Reduction(process_set, op, prescale_factor, postscale_factor))

    def own_rows(shape: Shape) -> Shape:
        rows = (*shape, 0)[0]
        return (rows // num_ranks + (rank < rows % num_ranks), *shape[1:])

    return _run_tree(collective, tree, own_rows, process_set, compression)


def broadcast(tree: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the pytree of ``root_rank``, which is a rank among all workers, not within the process set."""
    leaves, structure = jax.tree.flatten(tree)
    results = []
    for number, leaf in enumerate(leaves):
        key = jnp.asarray(leaf) if not _is_key(leaf) else jax.random.key_data(leaf)
        collective = passes.Broadcast(root_rank, suffixed(name, str(number)), process_set)
        (sent,) = _run_tree(collective, [key], lambda shape: shape, process_set)
        results.append(jax.random.wrap_key_data(sent, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else sent)
    return jax.tree.unflatten(structure, results)


def broadcast_parameters(params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return one rank's pytree on every rank: parameters, the state of an optimizer, random keys.

    JAX's arrays cannot be changed, so use what is returned::

        params, state = hvd.broadcast_parameters((params, optimizer.init(params)))
    """
    return broadcast(params, root_rank, "broadcast_parameters", process_set)


def alltoall(
    tree: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send each rank its part of the arrays, and return the received parts concatenated in rank order.

    Args:
        tree: arrays that hold the parts, along the first dimension, in rank order.
        splits: the number of rows for each rank; None: the same number for all.
        name: the name by which ranks match the collective; None: it is matched by the order of the calls.
        process_set: the ranks that take part.

    Returns:
        The received pytree; with ``splits``, also the number of rows that were received from each rank.
    """
    leaves, structure = jax.tree.flatten(tree)
    num_ranks = process_set.size()
    outputs, received = [], None
    for number, leaf in enumerate(leaves):
        given = [jnp.asarray(leaf)] if splits is None else [jnp.asarray(leaf), jnp.asarray(splits)]
        collective = passes.Alltoall(suffixed(name, str(number)), process_set)
        like = [_like(given[0]), jax.ShapeDtypeStruct((num_ranks,), jnp.int32)]
        output, received = _run(collective, given, like, process_set)
        outputs.append(output)
    result = jax.tree.unflatten(structure, outputs)
    return result if splits is None else (result, received)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Finish the collectives of compiled code, and block until every rank of the process set has called ``barrier``."""
    jax.effects_barrier()
    barrier_ops.barrier(process_set)


def join(device: int = -1) -> int:
    """Announce that this rank has no more data, and block until every rank has called ``join``.

    Until then this rank contributes zeros to the other ranks' all-reduces; averages still divide by the number of all
    ranks. Returns the rank that joined last.
    """
    jax.effects_barrier()
    return barrier_ops.join(device)


def shutdown() -> None:
    """Disconnect this worker, after the collectives of compiled code have finished."""
    jax.effects_barrier()
    basics.shutdown()


# How a collective becomes a differentiable function of JAX arrays.


def _run_tree(
    collective: passes.Collective,
    tree: Any,
    result_shape: Callable[[Shape], Shape],
    process_set: ProcessSet,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Run a collective with one result for each leaf, whose shape follows from that of the leaf."""
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    like = [jax.ShapeDtypeStruct(result_shape(array.shape), array.dtype) for array in arrays]
    return jax.tree.unflatten(structure, _run(collective, arrays, like, process_set, compression))


def _run(
    collective: passes.Collective,
    arrays: Sequence[Any],
    like: Sequence[Any],
    process_set: ProcessSet,
    compression: type[Compressor] = Compression.none,
) -> list[Any]:
    """Run a collective, with its backward pass where gradients are taken."""
    process_set.rank()  # raises here, not within compiled code, if this rank is not in the set

    def forward(tensors: Sequence[Tensor]) -> list[Tensor]:
        return _compressed(collective.forward, tensors, compression)

    def forward_and_saved(tensors: Sequence[Tensor]) -> list[Tensor]:
        results = forward(tensors)
        return [*results, *collective.saved(tensors, results)]

    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        return host_call(forward, arrays, like)

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def function(*inputs: Any) -> tuple[Any, ...]:
        return tuple(host_call(forward, inputs, like))

    def pass_forward(*inputs: Any) -> tuple[tuple[Any, ...], list[Any]]:
        empty = [[torch.empty(one.shape, dtype=torch.int32, device="meta") for one in ones] for ones in (inputs, like)]
        saved = [jax.ShapeDtypeStruct(tuple(one.shape), jnp.int32) for one in collective.saved(*empty)]
        results = host_call(forward_and_saved, inputs, [*like, *saved])
        return tuple(results[: len(like)]), results[len(like) :]

    def pass_backward(saved: list[Any], gradients: Sequence[Any]) -> tuple[Any, ...]:
        # Results that are integers have no gradient, which JAX writes as an array of a type of its own, float0.
        given = [
            jnp.zeros(gradient.shape, one.dtype) if gradient.dtype == jax.dtypes.float0 else gradient
            for gradient, one in zip(gradients, like, strict=True)
        ]
        found = host_call(
            lambda tensors: _compressed(
                lambda small: collective.backward(small, tensors[len(given) :]), tensors[: len(given)], compression
            ),
            [*given, *saved],
            [_like(array) for array in arrays],
        )
        padded = [*found, *[None] * (len(arrays) - len(found))]
        return tuple(
            gradient if jnp.issubdtype(array.dtype, jnp.inexact) else None
            for gradient, array in zip(padded, arrays, strict=True)
        )

    function.defvjp(pass_forward, pass_backward)
    return list(function(*arrays))


def _compressed(
    run: Callable[[Sequence[Tensor]], Sequence[Tensor]], tensors: Sequence[Tensor], compression: type[Compressor]
) -> list[Tensor]:
    small = [compression.compress(tensor) for tensor in tensors]
    results = run([tensor for tensor, _ in small])
    if compression is Compression.none:
        return list(results)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, small, strict=True)]


def _like(array: Any) -> Any:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
