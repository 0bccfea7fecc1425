"""Glyphs: a generated data set of 28 x 28 grey images of ten letter-like shapes, of any size and difficulty.

Each image is one of the shapes C G O Q P R B E F K, drawn with random slant, size, position, waviness and thickness,
with stray strokes, partly covered, and with noise. Many shapes differ in one stroke only (C and G, O and Q, P and R,
E and F), so that a small network keeps learning for some epochs, and one that makes too few updates is visibly worse.

A shape is stored as a distance field: the distance of each point of the plane to the nearest stroke. An image samples
the field at its pixels, mapped by the inverse of the image's random deformation; pixels nearer than the thickness are
ink. Image number i depends only on (seed, split, i), so that a larger set begins with the images of a smaller one.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rueda.data.arrays import Arrays
from rueda.data.counter import draws, key_of, uniform
from rueda.errors import DataError
from rueda.tasks.datasets.published import check_split

NAMES = tuple("CGOQPRBEFK")
SIDE = 28
_SIZES = {"train": 12_000, "test": 2_000, "validation": 2_000}
_SPLITS = tuple(_SIZES)
"""the place of a split is its number among the random streams"""
_FIELD, _REACH = 96, 1.8  # the fields cover [-1.8, 1.8] on both axes with 96 x 96 points
_CHUNK = 256  # images at a time, so that the arrays stay in the processor's cache
_NOISE = 1_000  # the random stream of the pixel noise

Floats = NDArray[np.float32]


def glyphs(split: str = "train", *, num_examples: int | None = None, difficulty: float = 0.7, seed: int = 0) -> Arrays:
    """Generate a split of the data set.

    Args:
        split: ``train``, ``validation`` or ``test``, which use different random numbers.
        num_examples: number of images; by default 12,000 for training, 2,000 for validation and 2,000 for testing.
        difficulty: from 0 (upright, clean) to 1. A small CNN (SGD, batch 64, 4 epochs) gets about 95 % right at 0.5,
            90 % at 0.7 and 75 % at 0.85.
        seed: seed of all random numbers.

    >>> data = glyphs("train", num_examples=8)
    >>> data, "".join(data.names[label] for label in data.targets)
    (Arrays(8 examples of uint8 [1, 28, 28]), 'KCGQBCBB')
    """
    check_split("glyphs", split, _SPLITS)
    num_examples = _SIZES[split] if num_examples is None else num_examples
    if num_examples < 1:
        raise DataError("glyphs", expected="1 example or more", got=num_examples, do="ask for more")
    if not 0 <= difficulty <= 1:
        raise DataError("difficulty", expected="from 0 to 1", got=difficulty, do="correct it")
    stream = key_of(seed, _SPLITS.index(split))
    images = np.empty((num_examples, 1, SIDE, SIDE), dtype=np.uint8)
    labels = np.empty(num_examples, dtype=np.int64)
    for start in range(0, num_examples, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, num_examples))
        labels[numbers] = (draws(key_of(stream, 0), numbers) % np.uint64(len(NAMES))).astype(np.int64)
        images[numbers, 0] = _draw(stream, numbers, labels[numbers], difficulty)
    return Arrays(images, labels, mean=[0.275], std=[0.242], names=NAMES)


def _draw(stream: int, numbers: NDArray[np.int64], labels: NDArray[np.int64], hard: float) -> NDArray[np.uint8]:
    """Draw the images of these numbers, [n, 28, 28]."""
    streams = iter(range(1, _NOISE))

    def between(low: float, high: float) -> Floats:
        """Draw one random number per image, [n, 1]."""
        drawn = uniform(draws(key_of(stream, next(streams)), numbers))
        return (low + (high - low) * drawn).astype(np.float32)[:, None]

    def about(reach: float) -> Floats:
        return between(-reach, reach)

    # The deformation: where each pixel of the image lies in the plane of the shape, [n, 784].
    axis = (np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2) / (SIDE / 2)
    right, down = np.tile(axis, SIDE)[None], np.repeat(axis, SIDE)[None]
    right, down = right - about(0.1 + 0.2 * hard), down - about(0.1 + 0.2 * hard)
    turn, slant = about(0.1 + 0.6 * hard), about(0.1 + 0.5 * hard)
    grow_x, grow_y = between(1.3, 1.5 + 0.7 * hard), between(1.3, 1.5 + 0.7 * hard)
    x = grow_x * (np.cos(turn) * right + np.sin(turn) * down)
    y = grow_y * (np.cos(turn) * down - np.sin(turn) * right)
    x += slant * y
    wave = 0.05 + 0.15 * hard
    x, y = (
        x + about(wave) * np.sin(between(1.5, 4.0) * y + about(np.pi)),
        y + about(wave) * np.sin(between(1.5, 4.0) * x + about(np.pi)),
    )

    # The shape's ink.
    thickness, soft = between(0.1, 0.2), np.float32(0.12)
    scale = np.float32((_FIELD - 1) / (2 * _REACH))
    column, row = ((np.clip(place, -_REACH, _REACH) + _REACH) * scale + 0.5 for place in (x, y))
    place = row.astype(np.int32) * _FIELD + column.astype(np.int32) + labels[:, None].astype(np.int32) * _FIELD**2
    distance = np.take(_fields().reshape(-1), place)
    ink = np.clip((thickness - distance) / soft + 0.5, 0, 1) * between(0.75 - 0.3 * hard, 1.0)

    # Stray strokes of the same kind at random positions.
    for _ in range(2):
        wanted = between(0.0, 1.0) < 0.2 + 0.7 * hard
        stray = _distance(x, y, about(1.5), about(1.5), about(np.pi), between(0.1, 0.5))
        np.maximum(ink, wanted * np.clip((thickness - stray) / soft + 0.5, 0, 1) * between(0.3, 0.9), out=ink)

    # A rectangle that covers a part, then the noise.
    covered = (np.abs(right - about(0.7)) < between(0.0, 0.35 * hard)) & (
        np.abs(down - about(0.7)) < between(0.0, 0.6 * hard)
    )
    np.copyto(ink, np.broadcast_to(between(0.0, 1.0), ink.shape), where=covered)
    pixels = SIDE * SIDE // 4  # 64 random bits are the noise of four pixels
    counters = (numbers[:, None] * pixels + np.arange(pixels)).reshape(-1)
    noise = draws(key_of(stream, _NOISE), counters).view(np.uint16).reshape(len(numbers), -1)
    ground = between(0.05, 0.1 + 0.25 * hard)
    ink = ground + (0.95 - ground) * ink + (noise * np.float32(2.0**-16) - 0.5) * between(0.1, 0.2 + 0.6 * hard)
    return np.asarray(np.clip(ink, 0, 1) * 255, dtype=np.uint8).reshape(-1, SIDE, SIDE)


def _distance(x: Floats, y: Floats, at_x: Floats, at_y: Floats, angle: Floats, half: Floats) -> Floats:
    """Return the distance to a stroke of length 2 ``half`` with centre (at_x, at_y) and direction ``angle``."""
    dx, dy = x - at_x, y - at_y
    along, across = dx * np.cos(angle) + dy * np.sin(angle), dy * np.cos(angle) - dx * np.sin(angle)
    beyond = np.maximum(np.abs(along) - half, 0)
    return np.asarray(np.sqrt(beyond * beyond + across * across))


@lru_cache(maxsize=1)
def _fields() -> Floats:
    """Return the distance to each shape's strokes on a grid, [10, 96, 96]."""
    axis = np.linspace(-_REACH, _REACH, _FIELD)
    grid = axis[None, :] + 1j * axis[:, None]  # the plane as complex numbers: x + iy, y downwards
    fields = np.full((len(NAMES), _FIELD, _FIELD), np.inf)
    for number, name in enumerate(NAMES):
        for stroke in _strokes(name):
            for begin, end in pairwise(stroke):
                span = end - begin
                along = np.clip(((grid - begin) * span.conjugate()).real / abs(span) ** 2, 0, 1)
                np.minimum(fields[number], abs(grid - begin - along * span), out=fields[number])
    return fields.astype(np.float32)


def _strokes(name: str) -> list[NDArray[np.complex128]]:
    """Return the strokes of a shape, each a polyline in [-1, 1] x [-1, 1] with y downwards."""

    def line(*points: complex) -> NDArray[np.complex128]:
        return np.array(points, dtype=np.complex128)

    def arc(middle: complex, wide: float, tall: float, begin: float, end: float) -> NDArray[np.complex128]:
        angles = np.linspace(np.radians(begin), np.radians(end), 25)
        return np.asarray(middle + wide * np.cos(angles) + 1j * tall * np.sin(angles), dtype=np.complex128)

    stem, bowl = line(-0.6 - 1j, -0.6 + 1j), arc(-0.6 - 0.5j, 1.1, 0.5, -90, 90)
    bars = [line(-0.6 - 1j, 0.6 - 1j), line(-0.6, 0.4)]
    open_ring, ring = arc(0, 0.8, 1, 45, 315), arc(0, 0.8, 1, 0, 360)
    shapes = {
        "C": [open_ring],
        "G": [open_ring, line(0.1 + 0.1j, 0.65 + 0.1j, 0.6 + 0.75j)],
        "O": [ring],
        "Q": [ring, line(0.2 + 0.4j, 0.8 + 1.05j)],
        "P": [stem, bowl],
        "R": [stem, bowl, line(-0.2 + 0j, 0.6 + 1j)],
        "B": [stem, bowl, arc(-0.6 + 0.5j, 1.2, 0.5, -90, 90)],
        "E": [stem, *bars, line(-0.6 + 1j, 0.6 + 1j)],
        "F": [stem, *bars],
        "K": [stem, line(0.6 - 1j, -0.6 + 0.1j), line(-0.3 - 0.15j, 0.6 + 1j)],
    }
    return shapes[name]
