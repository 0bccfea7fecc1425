from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rueda.data import Cutout, HorizontalFlip, RandomCrop
from rueda.data.counter import draws
from rueda.errors import DataError


def images(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def keys(num: int) -> torch.Tensor:
    return torch.from_numpy(draws(9, np.arange(num)).view(np.int64))


SHAPES = [(64, 3, 32, 32), (5, 1, 28, 28), (7, 2, 5, 9), (1, 1, 1, 1)]
TYPES = [torch.uint8, torch.float32, torch.float64, torch.int16]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "augmentation", [RandomCrop(4), RandomCrop(1), RandomCrop(0), HorizontalFlip(), HorizontalFlip(0.2)]
)
def test_rows_in_numpy_equal_torch_operations(
    augmentation: RandomCrop | HorizontalFlip, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    before = images(shape, dtype)
    after = augmentation(before, keys(len(before)))
    assert torch.equal(after, augmentation.in_torch(before, keys(len(before))))
    assert torch.equal(before, images(shape, dtype)), "the caller's images are not changed"


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    before = images((200, 3, 8, 8), torch.uint8)
    after = RandomCrop(2)(before, keys(200))
    padded = np.pad(before.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    seen = set()
    for number in range(200):
        places = [
            (down, right)
            for down in range(5)
            for right in range(5)
            if np.array_equal(after[number].numpy(), padded[number, :, down : down + 8, right : right + 8])
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) == 25, "every place comes up"


def test_canvases_of_equal_size_do_not_leak_into_each_other() -> None:
    """Height 10 with padding 1 and height 8 with padding 2 have canvases of one size."""
    for _ in range(3):
        for side, padding in ((10, 1), (8, 2)):
            before = images((50, 1, side, side), torch.uint8)
            assert torch.equal(RandomCrop(padding)(before, keys(50)), RandomCrop(padding).in_torch(before, keys(50)))


def test_flips_are_right_and_as_frequent_as_asked() -> None:
    before = images((4000, 1, 2, 3), torch.uint8)
    for probability in (0.0, 0.3, 0.5, 1.0):
        after = HorizontalFlip(probability)(before, keys(4000))
        mirrored = (after == before.flip(3)).flatten(1).all(1)
        same = (after == before).flatten(1).all(1)
        assert bool((mirrored | same).all())
        assert abs(float((mirrored & ~same).float().mean()) - probability) < 0.03


def test_cutout_fills_one_square() -> None:
    before = images((500, 2, 9, 7), torch.uint8)
    after = Cutout(size=4, fill=0)(before, keys(500))
    gone = after == 0
    assert torch.equal(after[~gone], before[~gone])
    assert torch.equal(gone[:, 0], gone[:, 1]), "all channels alike"
    rows, columns = gone[:, 0].any(2).sum(1), gone[:, 0].any(1).sum(1)
    assert torch.equal(rows * columns, gone[:, 0].sum((1, 2))), "a rectangle"
    assert (int(rows.min()), int(rows.max())) == (2, 4), "cut off at the edges"
    assert bool(gone[:, 0].any(0).all()), "anywhere"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCrop(-1), "0 or more"),
        (lambda: HorizontalFlip(1.5), "from 0 to 1"),
        (lambda: Cutout(0), "1 or more"),
        (lambda: RandomCrop()(torch.zeros(2, 8), keys(2)), "images"),
        (lambda: HorizontalFlip()(torch.zeros(2, 8, 8), keys(2)), "images"),
        (lambda: Cutout(2)(torch.zeros(2, 8), keys(2)), "images"),
    ],
)
def test_mistakes_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()
