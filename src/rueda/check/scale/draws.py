"""Random numbers of a batch: drawn for the entire batch, of which each worker uses its rows.

Dropout and the noise of a GAN or a variational autoencoder have a row for each example. A worker that drew them for its
share alone would draw other numbers than the serial script, and leave torch's generator in another state, so that the
next epoch had another order. So the functions below draw for the entire batch, in the serial script's order, and return
this worker's rows. The rows are found by their number: the first dimension that has as many as the share, or a first
dimension that is a multiple of it (a batch of sequences, flattened).

Numbers that are drawn within an operation of C++ (the dropout of ``nn.LSTM``) are not reached; :mod:`.generator` sees
it. Attention with dropout is computed here, as torch's own reference implementation does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rueda.check.patches import Patches
from rueda.check.scale.batches import BatchTracker
from rueda.check.scale.generator import GeneratorWatch
from rueda.check.scale.share import Share

_FACTORIES = ("randn", "rand")
_LIKE = ("randn_like", "rand_like", "randint_like", "bernoulli", "poisson")
_IN_PLACE = ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "log_normal_", "cauchy_", "geometric_")
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")


def rows_in(shape: Sequence[int], share: Share) -> tuple[int, int] | None:
    """Return the dimension that holds the examples of a share, and how many rows each has; None if there is none.

    >>> share = Share(low=4, rows=4, whole=8, num_counted=4)
    >>> rows_in([4, 3], share), rows_in([7, 4, 3], share), rows_in([20, 3], share), rows_in([5], share)
    ((0, 1), (1, 1), (0, 5), None)
    """
    if not shape or (len(shape) == 1 and shape[0] == 1):
        return None  # a single number, such as that of mixup, is one for the entire batch
    if shape[0] == share.rows:
        return 0, 1
    if len(shape) > 1 and shape[1] == share.rows:
        return 1, 1
    if share.rows > 1 and len(shape) > 1 and shape[0] and shape[0] % share.rows == 0:
        return 0, shape[0] // share.rows
    return None


def widened(shape: Sequence[int], place: tuple[int, int], share: Share) -> list[int]:
    """Return the shape that the entire batch would have."""
    dimension, each = place
    return [*shape[:dimension], share.whole * each, *shape[dimension + 1 :]]


def narrowed(tensor: Tensor, place: tuple[int, int], share: Share) -> Tensor:
    """Return the rows of a share of what was drawn for the entire batch."""
    dimension, each = place
    return tensor.narrow(dimension, share.low * each, share.rows * each)


class SharedDraws:
    """Replaces torch's functions that draw random numbers.

    Args:
        tracker: knows the share, and whether the numbers are for the batch.
        generator: is told of every draw.
    """

    def __init__(self, tracker: BatchTracker, generator: GeneratorWatch) -> None:
        self._tracker, self._generator = tracker, generator
        self._depth = 0

    def install(self, patches: Patches) -> None:
        """Replace the functions."""
        for owner, names, make in (
            (torch, _FACTORIES, self._factory),
            (torch, ("randint",), self._randint),
            (torch, _LIKE, self._like),
            (torch, ("normal",), self._normal),
            (torch, ("randperm",), self._permutation),
            (torch, ("multinomial",), lambda original: original),  # one for the entire batch
            (Tensor, _IN_PLACE, self._in_place),
            (functional, _DROPOUTS, self._dropout),
            (functional, ("scaled_dot_product_attention",), self._attention),
        ):
            for name in names:
                patches.replace(owner, name, self._followed(make))

    def _followed(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Report every draw of the script to the generator's watch, except for draws that are part of another one."""

        def replacement(original: Any) -> Any:
            shared = make(original)

            def draw(*args: Any, **options: Any) -> Any:
                if torch.compiler.is_compiling():  # a compiled graph draws in its own way, which the watch sees
                    return original(*args, **options)
                if self._tracker.share is None or self._tracker.is_suspended or self._depth:
                    return original(*args, **options)
                self._generator.before_draw()
                self._depth += 1
                try:
                    return shared(*args, **options)
                finally:
                    self._depth -= 1
                    self._generator.after_draw()

            return draw

        return replacement

    def _place(self, shape: Sequence[int]) -> tuple[tuple[int, int], Share] | None:
        """Return where the examples are, if this shape has rows of the batch."""
        share = self._tracker.share
        place = None if share is None else rows_in(shape, share)
        return None if place is None or share is None else (place, share)

    def _factory(self, original: Any) -> Any:
        def draw(*size: Any, **options: Any) -> Tensor:
            shape = _size_of(size, options)
            found = None if shape is None or options.get("out") is not None else self._place(shape)
            if found is None or shape is None:
                return original(*size, **options)  # type: ignore[no-any-return]
            options.pop("size", None)
            grad = options.pop("requires_grad", False)
            drawn = narrowed(original(widened(shape, *found), **options), *found).clone()
            return drawn.requires_grad_(grad)

        return draw

    def _randint(self, original: Any) -> Any:
        def randint(*args: Any, **options: Any) -> Tensor:
            shape: Any = options.get("size", args[-1] if args else None)
            found = self._place(shape) if isinstance(shape, (tuple, list)) and options.get("out") is None else None
            if found is None:
                return original(*args, **options)  # type: ignore[no-any-return]
            if "size" in options:
                options["size"] = widened(shape, *found)
            else:
                args = (*args[:-1], widened(shape, *found))
            return narrowed(original(*args, **options), *found).clone()

        return randint

    def _like(self, original: Any) -> Any:
        def draw(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
            found = None if _is_parameter(tensor) or options.get("out") is not None else self._place(tensor.shape)
            if found is None:
                return original(tensor, *args, **options)  # type: ignore[no-any-return]
            return narrowed(original(_spread(tensor, *found), *args, **options), *found).clone()

        return draw

    def _normal(self, original: Any) -> Any:
        def normal(mean: Any, std: Any = 1.0, *args: Any, **options: Any) -> Tensor:
            shape: Any = options.get("size", args[0] if args else None)
            tensors = [one for one in (mean, std) if isinstance(one, Tensor)]
            if shape is None and tensors:
                shape = torch.broadcast_shapes(*(one.shape for one in tensors))  # type: ignore[no-untyped-call]
            found = self._place(shape) if isinstance(shape, (tuple, list)) and options.get("out") is None else None
            if found is None:
                return original(mean, std, *args, **options)  # type: ignore[no-any-return]
            if not tensors:
                options.pop("size", None)
                return narrowed(original(mean, std, widened(shape, *found), **options), *found).clone()
            spread = [_spread(one.expand(shape), *found) if isinstance(one, Tensor) else one for one in (mean, std)]
            return narrowed(original(*spread, *args, **options), *found).clone()

        return normal

    def _permutation(self, original: Any) -> Any:
        """Permute the rows of the share as they are ordered among those of the entire batch.

        The generator is then where the serial script's is; the permutation of the batch itself, as mixup uses it, would
        need rows of other workers. So the loss is one that has to be compared.
        """

        def randperm(n: int, *args: Any, **options: Any) -> Tensor:
            share = self._tracker.share
            if share is None or n != share.rows or options.get("out") is not None:
                return original(n, *args, **options)  # type: ignore[no-any-return]
            self._tracker.marks.add("a permutation of the batch")
            whole = original(share.whole, *args, **options) - share.low
            return whole[(whole >= 0) & (whole < share.rows)]  # type: ignore[no-any-return]

        return randperm

    def _in_place(self, original: Any) -> Any:
        def draw(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
            found = None if _is_parameter(tensor) else self._place(tensor.shape)
            if found is None or any(isinstance(one, Tensor) for one in args):
                return original(tensor, *args, **options)  # type: ignore[no-any-return]
            whole = original(torch.empty_like(_spread(tensor, *found)), *args, **options)
            return tensor.copy_(narrowed(whole, *found))

        return draw

    def _dropout(self, original: Any) -> Any:
        def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
            found = self._place(input.shape) if training and 0.0 < p < 1.0 else None
            if found is None:
                return original(input, p, training, inplace)  # type: ignore[no-any-return]
            with torch.no_grad():
                ones = _spread(input, *found).fill_(1.0)
                mask = narrowed(original(ones, p, True, False), *found)
            return input.mul_(mask) if inplace else input * mask

        return dropout

    def _attention(self, original: Any) -> Any:
        dropout = self._dropout(functional.dropout)  # the original one: it is replaced before, but counts as within

        def attention(
            query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
        ) -> Tensor:  # fmt: skip
            if dropout_p == 0.0 or enable_gqa:
                return original(  # type: ignore[no-any-return]
                    query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
                )
            root = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
            scores = (query * root) @ (key * root).transpose(-2, -1)
            if is_causal:
                attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            if attn_mask is not None and attn_mask.dtype == torch.bool:
                scores = scores.masked_fill(~attn_mask, float("-inf"))
            elif attn_mask is not None:
                scores = scores + attn_mask
            return dropout(scores.softmax(-1), dropout_p) @ value  # type: ignore[no-any-return]

        return attention


def _size_of(size: tuple[Any, ...], options: dict[str, Any]) -> list[int] | None:
    given = options.get("size", size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size)
    return [int(one) for one in given] if all(isinstance(one, int) for one in given) else None


def _spread(tensor: Tensor, place: tuple[int, int], share: Share) -> Tensor:
    """Return a tensor with the shape of the entire batch, in which the rows of the share are those of ``tensor``.

    The order of its dimensions in memory is that of ``tensor``, since torch draws in that order. Of two dimensions with
    the same stride one has a single row, and is the inner one.
    """
    shape = widened(tensor.shape, place, share)
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda one: (-strides[one], -tensor.shape[one]))
    whole = tensor.detach().new_zeros([shape[one] for one in order]).permute(*map(order.index, range(tensor.dim())))
    narrowed(whole, place, share).copy_(tensor.detach())
    return whole


def _is_parameter(tensor: Any) -> bool:
    return isinstance(tensor, nn.Parameter) or (isinstance(tensor, Tensor) and tensor.is_leaf and tensor.requires_grad)
