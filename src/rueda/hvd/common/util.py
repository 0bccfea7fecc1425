"""Small tools that Horovod's scripts import, as ``horovod.common.util``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

Value = TypeVar("Value")

EXTENSIONS = ["torch"]
# As of a package: so `from ... import` of a name that is gone asks the finder of rueda.hvd.alias, which explains.
__path__: list[str] = []


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables for a ``with`` block; None leaves one as it is.

    >>> with env(HOROVOD_CYCLE_TIME="5"):
    ...     print(os.environ["HOROVOD_CYCLE_TIME"])
    5
    """
    wanted = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Say whether there is a front for a framework, and the framework itself.

    >>> extension_available("torch"), extension_available("mxnet")
    (True, False)
    """
    return ext_base_name in EXTENSIONS and importlib.util.find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise ImportError unless there is a front of that name, such as ``horovod.torch``."""
    name = ext_name.rpartition(".")[2]
    if not extension_available(name):
        from rueda.hvd.names import no_module

        raise no_module(f"horovod.{name}")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Say whether the framework sees a GPU."""
    if not extension_available(ext_base_name):
        return False
    import torch

    return torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:
    """Say whether tensors could travel over MPI."""
    return bool(_basics().mpi_built())


def gloo_built(verbose: bool = False) -> bool:
    """Say whether torch has Gloo."""
    return bool(_basics().gloo_built())


def nccl_built(verbose: bool = False) -> int:
    """Give NCCL's version as a number, 0 without it."""
    return int(_basics().nccl_built())


def ddl_built(verbose: bool = False) -> int:
    """Say whether IBM's DDL is there."""
    return int(_basics().ddl_built())


def ccl_built(verbose: bool = False) -> int:
    """Say whether oneCCL is used."""
    return int(_basics().ccl_built())


def cuda_built(verbose: bool = False) -> bool:
    """Say whether torch has CUDA."""
    return bool(_basics().cuda_built())


def rocm_built(verbose: bool = False) -> bool:
    """Say whether torch has ROCm."""
    return bool(_basics().rocm_built())


def _basics() -> Any:
    from rueda.hvd import basics  # loads torch

    return basics


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """Make the function that reads the old ``average=`` beside the new ``op=``: only one of them may be given."""

    def choose(op: Any, average: bool | None) -> Any:
        if op is not None and average is not None:
            raise ValueError("op: expected either op or the older average, got both; give op alone")
        if op is not None:
            return op
        return reduce_ops.Sum if average is False else reduce_ops.Average

    return choose


def num_rank_is_power_2(num_rank: int) -> bool:
    """Say whether a number of workers is a power of two (Adasum here takes any number).

    >>> [size for size in range(9) if num_rank_is_power_2(size)]
    [1, 2, 4, 8]
    """
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Value], n: int) -> list[Sequence[Value]]:  # noqa: E741
    """Cut a list into n parts whose lengths differ by one at most.

    >>> split_list([1, 2, 3, 4, 5], 3)
    [[1, 2], [3, 4], [5]]
    """
    ends = [len(l) // n * part + min(part, len(l) % n) for part in range(n + 1)]
    return [l[start:end] for start, end in pairwise(ends)]


def is_iterable(x: object) -> bool:
    """Say whether one can go through an object."""
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare versions by their numbers.

    >>> is_version_greater_equal_than("2.13.0+cpu", "2.6"), is_version_greater_equal_than("0.28.1+rueda", "0.29")
    (True, False)
    """
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> list[int]:
    import re

    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[+a-z-]", version)[0])]
    return [*numbers, 0, 0, 0][:3]


def __getattr__(name: str) -> Any:
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.common.util", name)
