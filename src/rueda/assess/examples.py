"""The examples of a task: those that a script gets, and those that only the grader has."""

from __future__ import annotations

from rueda.assess.settings import TaskData
from rueda.data.arrays import Arrays
from rueda.tasks.datasets import glyphs, load

_VALIDATION_SEED = 1


def given(data: TaskData) -> tuple[Arrays, Arrays]:
    """Return the training and the validation examples that every script gets."""
    if data.name == "glyphs":
        train = glyphs("train", num_examples=data.num_train or None)
        return train, glyphs("test", num_examples=data.num_validation, seed=_VALIDATION_SEED)
    whole = load(data.name, "train")
    last = len(whole) - data.num_validation
    train = whole.subset(slice(0, min(last, data.num_train or last)))
    return train, whole.subset(slice(last, len(whole)))


def held_out(data: TaskData, seed: int) -> Arrays:
    """Return the grader's own examples.

    Glyphs are drawn anew from a seed that is chosen after the script has ended, so nobody can know them. Of a published
    data set they are the test examples, which the script cannot read while it runs.
    """
    if data.name == "glyphs":
        return glyphs("test", num_examples=data.num_held_out, seed=seed)
    test = load(data.name, "test")
    return test.subset(slice(0, min(len(test), data.num_held_out)))
