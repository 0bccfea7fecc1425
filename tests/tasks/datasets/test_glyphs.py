from __future__ import annotations

import pytest
import torch

from rueda.errors import DataError
from rueda.tasks.datasets import glyphs, load


def test_the_same_seed_draws_the_same_images_and_a_smaller_set_begins_a_larger() -> None:
    large, small = glyphs("train", num_examples=600), glyphs("train", num_examples=300)
    assert torch.equal(large.inputs[:300], small.inputs)
    assert torch.equal(large.targets[:300], small.targets)
    assert large.inputs.shape == (600, 1, 28, 28)
    assert not torch.equal(glyphs("train", num_examples=300, seed=1).inputs, small.inputs)


def test_train_and_test_have_no_image_in_common() -> None:
    splits = [glyphs(split, num_examples=500) for split in ("train", "test")]
    train, test = ({bytes(image.numpy().tobytes()) for image in data.inputs} for data in splits)
    assert len(train) == len(test) == 500
    assert not train & test
    assert splits[0].targets.tolist() != splits[1].targets.tolist()


def test_classes_are_balanced_and_images_are_normalised() -> None:
    data = load("glyphs", "train", num_examples=4000)
    counts = torch.bincount(data.targets, minlength=10)
    assert float(((counts - 400.0) ** 2 / 400).sum()) < 30
    values = data.floats(data.inputs)
    assert abs(float(values.mean())) < 0.05
    assert abs(float(values.std()) - 1) < 0.05


def test_easy_images_are_told_apart_by_their_nearest_neighbour_and_hard_ones_are_not() -> None:
    right = []
    for difficulty in (0.0, 0.7):
        train, test = (glyphs(split, num_examples=1000, difficulty=difficulty) for split in ("train", "test"))
        known, asked = (data.floats(data.inputs).flatten(1) for data in (train, test))
        nearest = torch.cdist(asked, known).argmin(1)
        right.append(float((train.targets[nearest] == test.targets).float().mean()))
    easy, hard = right
    assert easy > 0.85
    assert 0.15 < hard < 0.5, "above chance, but a template does not do"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "train or test or validation"),
        ({"num_examples": 0}, "1 example or more"),
        ({"difficulty": 1.5}, "from 0 to 1"),
    ],
)
def test_mistakes_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        glyphs(**options)  # type: ignore[arg-type]
