"""The layers of a model as parallel forms see them: parameters, activations and work, in the order of the forward pass.

A *layer* here is a block that a form keeps whole: the unit that sharding gathers at once and that a pipeline puts into
one stage, such as a block of a transformer or a convolution with its activation function.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from rueda.records.json_record import NotNegative, NotNegativeInt, PositiveInt


@dataclass(frozen=True, kw_only=True)
class LayerWork:
    """One layer; all sizes of activations are bytes per example, in the data type of the parameters."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    """shapes of its trainable parameters, without those that a layer before has already"""
    gathered_once: tuple[tuple[int, ...], ...] = ()
    """of these shapes, those that sharding gathers once for the whole step, as embeddings, and not for each pass"""
    tied_to: str = ""
    """the layer before that has its other parameters, such as the embedding that is also the output layer"""
    tied_parameters: NotNegativeInt = 0
    """how many parameters it shares with that layer: in another stage of a pipeline it has a copy of them"""
    element_bytes: PositiveInt = 4
    """bytes of one parameter"""
    output_bytes: NotNegative
    """its output, which a pipeline sends if it is cut here"""
    saved_bytes: NotNegative
    """what its forward pass keeps for its backward pass, without what layers before it have kept already"""
    saved_input_bytes: NotNegative = 0.0
    """how much of its input it keeps that a layer before has kept already: a stage that begins here keeps it, too"""
    flops: NotNegative
    """matrix products, convolutions and attention of a forward and a backward pass, per example"""
    split_parameters: NotNegativeInt = 0
    """how many of its parameters tensor parallelism divides among the workers; 0: it has no plan for this layer"""
    split_saved_bytes: NotNegative = 0.0
    """how much of ``saved_bytes`` lies between a layer split by columns and the next one split by rows"""
    exchanged_bytes: NotNegative = 0.0
    """activations and their gradients that tensor parallelism all-reduces"""
    split_flops: NotNegative = 0.0
    """how many of ``flops`` are divided"""

    @property
    def parameters(self) -> int:
        """The number of its trainable parameters.

        >>> LayerWork(name="0", shapes=((8, 4), (8,)), output_bytes=0, saved_bytes=0, flops=0).parameters
        40
        """
        return sum(map(prod, self.shapes))

    def padded_bytes(self, workers: int) -> int:
        """Return the bytes that sharding over some workers gathers: the first dimension is padded to a multiple.

        >>> LayerWork(name="0", shapes=((5, 4), ()), output_bytes=0, saved_bytes=0, flops=0).padded_bytes(2)
        104
        """
        return self._padded(self.shapes, workers)

    def padded_once(self, workers: int) -> int:
        """Return the bytes of :meth:`padded_bytes` that are gathered once for the whole step."""
        return self._padded(self.gathered_once, workers)

    def _padded(self, shapes: tuple[tuple[int, ...], ...], workers: int) -> int:
        rows = ((-(-(shape[0] if shape else 1) // workers) * workers, prod(shape[1:])) for shape in shapes)
        return self.element_bytes * sum(first * rest for first, rest in rows)
