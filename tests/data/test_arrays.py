from __future__ import annotations

import numpy as np
import pytest
import torch

from rueda.data import Arrays
from rueda.errors import DataError

BYTES = torch.randint(0, 256, (6, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_become_normalised_numbers(dtype: torch.dtype) -> None:
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 2.0]
    data = Arrays(BYTES, LABELS, mean=mean, std=std)
    expected = BYTES.double() / 255
    expected = (expected - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(std).reshape(3, 1, 1)
    found = data.floats(BYTES, dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)
    out = torch.empty_like(found)
    assert data.floats(BYTES, dtype, out=out) is out
    assert torch.equal(out, found)


def test_without_mean_bytes_become_x_over_255() -> None:
    data = Arrays(BYTES.numpy(), LABELS.numpy())
    torch.testing.assert_close(data.floats(BYTES), BYTES.float() / 255)
    flat = Arrays(BYTES.reshape(6, -1), LABELS, mean=[0.5], std=[0.5])
    torch.testing.assert_close(flat.floats(flat.inputs), (flat.inputs / 255 - 0.5) / 0.5)
    single = Arrays(BYTES[:, 0, 0, 0], LABELS)
    torch.testing.assert_close(single.floats(single.inputs), single.inputs / 255)


def test_other_inputs_are_left_as_they_are() -> None:
    tokens = Arrays(torch.arange(6).reshape(6, 1), torch.zeros(6))
    assert tokens.floats(tokens.inputs).dtype == torch.int64
    assert tokens.targets.dtype == torch.float32, "targets of a regression stay numbers"
    assert Arrays(torch.zeros(3, 2), np.array([1, 0, 1], dtype=np.uint8)).targets.dtype == torch.int64


def test_a_subset_keeps_what_belongs_to_the_set() -> None:
    data = Arrays(BYTES, LABELS, mean=[0.5] * 3, std=[0.5] * 3, names=["a", "b", "c"])
    part = data.subset([4, 0])
    assert torch.equal(part.inputs, BYTES[[4, 0]])
    assert part.targets.tolist() == [1, 0]
    assert (part.mean, part.std, part.names, part.num_classes) == (data.mean, data.std, data.names, 3)
    assert len(data.subset(slice(0, 3))) == 3
    assert data.to("cpu").inputs.equal(BYTES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Arrays(BYTES, LABELS[:5]), "as many as inputs"),
        (lambda: Arrays(BYTES[:0], LABELS[:0]), "at least 1 example"),
        (lambda: Arrays(BYTES, LABELS, num_classes=2), "labels: expected from 0 to 1, got 2"),
        (lambda: Arrays(BYTES, LABELS - 1, num_classes=3), "got -1"),
        (lambda: Arrays(BYTES, LABELS.float(), num_classes=3), "whole numbers"),
        (lambda: Arrays(BYTES, LABELS, mean=[0.5, 0.5]), "1 or 3 numbers"),
        (lambda: Arrays(BYTES, LABELS, std=[0.0]), "above 0"),
        (lambda: Arrays(BYTES.float(), LABELS, mean=[0.5]), "inputs of uint8"),
        (lambda: Arrays([1, 2], LABELS), "a tensor or a numpy array"),  # type: ignore[arg-type]
        (lambda: Arrays(torch.tensor(1), LABELS), "one row an example"),
        (lambda: Arrays(torch.zeros(6, 0), LABELS), "values in each example"),
        (lambda: Arrays(BYTES, LABELS).subset([6]), "from 0 to 5"),
        (lambda: Arrays(BYTES, LABELS).subset([-1]), "from 0 to 5"),
        (lambda: Arrays(BYTES, LABELS).subset([]), "at least 1 example"),
    ],
)
def test_mistakes_are_refused(make: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()  # type: ignore[operator]


def test_a_read_only_array_is_taken_without_a_warning() -> None:
    content = np.frombuffer(bytes(range(8)), dtype=np.uint8).reshape(2, 4)
    assert Arrays(content, np.zeros(2, dtype=np.int64)).inputs.tolist() == content.tolist()
