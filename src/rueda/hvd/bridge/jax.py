"""Call a function of torch tensors with JAX arrays, eagerly and inside compiled code.

Outside of ``jit`` the function runs at once: the arrays and its results change hands by DLPack, without a copy.

Inside compiled code the call becomes one callback, which reads the arrays in XLA's own buffers and writes into those of
the results (``jax.experimental.buffer_callback``, on CPUs and GPUs). Nothing of JAX runs within it: an ``io_callback``
on the arrays themselves would copy them in a thread of the pool that the callback blocks, and large arrays then never
arrive (`jax-ml/jax#24255 <https://github.com/jax-ml/jax/issues/24255>`_).

A collective blocks until all ranks have called it, so each must run once, and in the same order on every rank. XLA may
reorder callbacks that do not depend on each other. Two callbacks with JAX's *ordered* effect therefore surround it;
only a number passes through them::

    ready = io_callback(ordered)                             after all ordered callbacks before it
    done, *results = buffer_callback(ready, *arrays)
    io_callback(done, ordered)                               before all ordered callbacks after it

The effect also makes JAX refuse what would repeat the call, such as ``jax.checkpoint``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from rueda.errors import MissingExtra

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import io_callback
    from jax.experimental.buffer_callback import buffer_callback
except ModuleNotFoundError:
    raise MissingExtra("jax", "jax") from None

Function = Callable[[list[Tensor]], list[Tensor]]

_NUMBER = jax.ShapeDtypeStruct((), np.int32)


def host_call(function: Function, arrays: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Return what a function of torch tensors returns for JAX arrays, as JAX arrays.

    Args:
        function: takes and returns a list of tensors. It must not change its arguments, which share the arrays' memory.
        arrays: the arrays; those of compiled code may be traced.
        like: what the results look like: objects with ``shape`` and ``dtype``. Compiled code needs them exactly; an
            eager call accepts any.
    """
    arrays = [jnp.asarray(array) for array in arrays]
    # Operations of a function that is being traced give tracers, even where their arguments are constants.
    if any(isinstance(array, jax.core.Tracer) for array in [*arrays, jnp.zeros(())]):
        return _compiled(function, arrays, [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in like])
    if any(len(array.devices()) > 1 for array in arrays):
        raise ValueError("an array on several devices: expected one device per process; give the array of one device")
    jax.effects_barrier()  # calls of compiled code that still runs were made before this one
    tensors = [from_dlpack(array) for array in jax.block_until_ready(arrays)]
    memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    results = function(tensors)
    # An array that another one shares its memory with could be donated, and overwritten.
    own = [result.clone() if result.untyped_storage().data_ptr() in memory else result for result in results]
    return [jax.dlpack.from_dlpack(result.detach().contiguous()) for result in own]


def _compiled(function: Function, arrays: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    if jax.sharding.get_abstract_mesh().manual_axes:
        raise NotImplementedError(
            "a collective of rueda.hvd within shard_map or pmap: expected one device per process, which calls it once; "
            "call it outside, or use the collectives of jax.lax among the devices of a process"
        )

    def run(context: Any, out: Sequence[Any], ready: Any, *inputs: Any) -> None:
        tensors, (_, *outputs) = [[from_dlpack(buffer) for buffer in buffers] for buffers in (inputs, out)]
        with _stream(context, outputs):
            for output, result in zip(outputs, function(tensors), strict=True):
                if output.shape != result.shape:
                    raise RuntimeError(
                        f"a collective in compiled code: expected a result of shape {tuple(output.shape)}, "
                        f"got {tuple(result.shape)}; call it outside of jit where shapes differ between the ranks"
                    )
                output.copy_(result)

    @jax.custom_batching.custom_vmap  # type: ignore[untyped-decorator]
    def call(*inputs: Any) -> Any:
        ready = io_callback(lambda: np.zeros((), np.int32), _NUMBER, ordered=True)
        done, *results = buffer_callback(run, [_NUMBER, *like], has_side_effect=True)(ready, *inputs)
        io_callback(lambda _: None, None, done, ordered=True)
        return results

    @call.def_vmap  # type: ignore[untyped-decorator]
    def refuse(*_: Any) -> Any:
        raise NotImplementedError(
            "a collective of rueda.hvd within vmap: expected one call for all; call it on the whole array, outside"
        )

    return list(call(*arrays))


def _stream(context: Any, tensors: Sequence[Tensor]) -> Any:
    """Make XLA's stream current on a GPU, so that torch waits for what XLA computes, and XLA for torch."""
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is None:
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(context.stream, device))  # type: ignore[no-untyped-call]
