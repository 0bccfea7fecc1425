"""The compiled kernel of ghost batch norm against the one in torch's operations, and without what it needs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rueda.nn import ghost_compiled, ghost_rows
from rueda.nn.ghost_sizes import ghost_sizes

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Let each test look for the kernel anew, and leave no answer behind."""
    ghost_compiled._load.cache_clear()
    yield
    ghost_compiled._load.cache_clear()


def channels_last(*shape: int, dtype: torch.dtype) -> Tensor:
    return (3 * torch.randn(*shape, dtype=dtype) + 2).movedim(1, -1).contiguous().movedim(-1, 1)


SHAPES = {
    "one channel": ((24, 1, 3, 3), 8),
    "odd": ((26, 3, 5, 3), 8),
    "flat": ((48, 7), 8),
    "narrow, a power of two": ((64, 16, 4, 4), 16),
    "as wide as a row": ((40, 64, 3, 3), 16),
    "between": ((24, 48, 4, 4), 8),
    "wider": ((24, 200, 2, 2), 8),
    "many ghosts": ((256, 5, 2, 2), 2),
    "long": ((66, 8, 32, 32), 33),
}


@needs_compiler
@pytest.mark.parametrize(("shape", "ghost"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("affine", [True, False])
def test_equals_torchs_operations(
    shape: tuple[int, ...], ghost: int, dtype: torch.dtype, tolerance: float, affine: bool
) -> None:
    torch.manual_seed(0)
    kernel = ghost_compiled.kernel(dtype)
    assert kernel is not None
    x, dy = channels_last(*shape, dtype=dtype), channels_last(*shape, dtype=dtype)
    sizes = list(ghost_sizes(shape[0], ghost, x[0, 0].numel()))
    weight, bias = (torch.randn(shape[1], dtype=dtype) if affine else None for _ in range(2))
    compiled = ghost_compiled.forward_compiled(kernel, x, weight, bias, sizes, 1e-5)
    rows = ghost_rows.forward_rows(x, weight, bias, sizes, 1e-5)
    mean, inverse = rows[1], torch.rsqrt(rows[2] + 1e-5)
    compiled += ghost_compiled.backward_compiled(kernel, dy, x, weight, mean, inverse, sizes)
    rows += ghost_rows.backward_rows(dy, x, weight, mean, inverse, sizes)
    for ours, theirs in zip(compiled, rows, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


@needs_compiler
def test_threads_change_no_bit() -> None:
    kernel = ghost_compiled.kernel(torch.float32)
    x = channels_last(96, 32, 16, 16, dtype=torch.float32)
    found = []
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            y, mean, variance = ghost_compiled.forward_compiled(kernel, x, None, None, [16] * 6, 1e-5)
            inverse = torch.rsqrt(variance + 1e-5)
            found.append([y, mean, *ghost_compiled.backward_compiled(kernel, x, x, None, mean, inverse, [16] * 6)])
    finally:
        torch.set_num_threads(threads)
    for more in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], more, strict=True))


@needs_compiler
def test_a_large_mean_cancels_nothing_and_a_nan_stays() -> None:
    kernel = ghost_compiled.kernel(torch.float32)
    x = channels_last(64, 6, 8, 8, dtype=torch.float64) + 4096
    _, mean, variance = ghost_compiled.forward_compiled(kernel, x.float(), None, None, [32, 32], 1e-5)
    exact = x.float().double().view(2, 32, 6, 8, 8)
    torch.testing.assert_close(mean.double(), exact.mean((1, 3, 4)), rtol=1e-6, atol=0)
    torch.testing.assert_close(variance.double(), exact.var((1, 3, 4), correction=0), rtol=1e-5, atol=0)
    broken = x.float()
    broken[3, 2, 1, 1] = torch.nan
    y, mean, variance = ghost_compiled.forward_compiled(kernel, broken, None, None, [32, 32], 1e-5)
    assert mean.isnan().nonzero().tolist() == variance.isnan().nonzero().tolist() == [[0, 2]]
    assert y[:32, 2].isnan().all() and not y[32:].isnan().any() and not y[:, 3:].isnan().any()


def test_without_what_it_needs_there_is_no_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUEDA_CACHE", str(tmp_path))
    monkeypatch.setenv("RUEDA_KERNELS", "off")
    assert ghost_compiled.kernel(torch.float32) is None
    monkeypatch.delenv("RUEDA_KERNELS")
    assert ghost_compiled.kernel(torch.bfloat16) is None
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    for compiler in ("no-such-compiler", str(failing)):
        monkeypatch.setenv("CC", compiler)
        assert ghost_compiled.kernel(torch.float32) is None
    monkeypatch.delenv("CC")
    monkeypatch.setenv("RUEDA_CACHE", "/proc/no-folder-can-be-made-here")
    assert ghost_compiled.kernel(torch.float64) is None


@needs_compiler
def test_a_damaged_file_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, damaged = tmp_path / "sound", tmp_path / "damaged" / "kernels"
    monkeypatch.setenv("RUEDA_CACHE", str(sound))
    assert ghost_compiled.kernel(torch.float32) is not None
    (file,) = sound.glob("kernels/*")
    damaged.mkdir(parents=True)
    (damaged / file.name).write_bytes(b"torn")
    monkeypatch.setenv("RUEDA_CACHE", str(damaged.parent))
    ghost_compiled._load.cache_clear()
    assert ghost_compiled.kernel(torch.float32) is not None
    assert (damaged / file.name).stat().st_size == file.stat().st_size
    assert [one.name for one in damaged.iterdir()] == [file.name]
