"""The kernel that copies past the cache: every bit is copied, and a number that is not finite is found anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch

from rueda.train import stream_copy as module
from rueda.train.copies import StateCopies
from rueda.train.stream_copy import stream_copy


@pytest.fixture(autouse=True)
def small_tensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "SMALLEST", 1)
    module._load.cache_clear()
    yield
    module._load.cache_clear()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_every_bit_is_copied_and_nothing_beside(dtype: torch.dtype, start: int) -> None:
    integers = {torch.float32: torch.int32, torch.float64: torch.int64}[dtype]
    for size in (1, 7, 31, 32, 33, 100, 1001):
        bits = torch.randint(-(2**31), 2**31, (size + 8,)).to(integers) * (1 if dtype == torch.float32 else 2**32 + 1)
        source, into = bits.view(dtype)[start : start + size], torch.zeros(size + 8, dtype=dtype)
        finite = stream_copy(into[start : start + size], source)
        if finite is None:
            pytest.skip("the kernel could not be compiled here")
        assert finite == bool(source.isfinite().all())
        assert torch.equal(into[start : start + size].view(integers), source.view(integers))
        assert not into[:start].any() and not into[start + size :].any()


@pytest.mark.parametrize("kernels", ["on", "off"])
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), -float("inf")])
def test_a_copy_knows_whether_it_is_finite(kernels: str, bad: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUEDA_KERNELS", kernels)
    for place in (0, 5, 150, 298):
        weight = torch.randn(23, 13)
        if bad is not None:
            weight.view(-1)[place] = bad
        taken = StateCopies(torch.device("cpu"), 1).take(1, {"weight": weight})
        assert taken.is_finite == (bad is None)
        assert torch.equal(taken.contents["weight"].view(torch.int32), weight.view(torch.int32))


def test_largest_numbers_are_finite() -> None:
    for dtype in (torch.float32, torch.float64):
        largest = torch.full((100,), torch.finfo(dtype).max, dtype=dtype)
        assert stream_copy(torch.empty_like(largest), largest) in (True, None)
