"""Utilities that Horovod's scripts import from ``horovod.common.util``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

Value = TypeVar("Value")
EXTENSIONS = ["tensorflow", "torch"]

# The functions of rueda.hvd.basics that in this module, as in Horovod's, also accept `verbose`; see __getattr__.
_BUILT = ("mpi_built", "gloo_built", "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built")
# A path makes this a package, so that `from ... import` of a missing name asks the finder of rueda.hvd.alias, which
# raises an error that explains it.
__path__: list[str] = []


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables for a ``with`` block; None leaves a variable unchanged.

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
    """Return whether Rueda has Horovod's interface for a framework, and the framework is installed.

    >>> extension_available("torch"), extension_available("mxnet")
    (True, False)
    """
    return ext_base_name in EXTENSIONS and importlib.util.find_spec(ext_base_name) is not None


def get_ext_suffix() -> str:
    """Return the suffix of compiled extensions of this Python.

    >>> get_ext_suffix().endswith((".so", ".pyd"))
    True
    """
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Return where a package of Horovod would have a compiled extension; Rueda has none, so the file does not exist."""
    return os.path.join(os.path.dirname(pkg_path), *args[:-1], args[-1] + get_ext_suffix())


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Do nothing: Rueda has no compiled part, so no version of a framework can differ from that of a compilation."""


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise ImportError unless Rueda has an interface of this name, such as ``horovod.torch``."""
    name = ext_name.rpartition(".")[2]
    if not extension_available(name):
        from rueda.hvd.names import no_module

        raise no_module(f"horovod.{name}")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the framework can use a GPU."""
    if not extension_available(ext_base_name):
        return False
    if ext_base_name == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    import torch

    return torch.cuda.is_available()


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """Return a function that chooses the operation from ``op`` or the older ``average``; giving both is an error."""

    def choose(op: Any, average: bool | None) -> Any:
        if op is not None and average is not None:
            raise ValueError("op: expected either op or the older average, got both; give op alone")
        if op is not None:
            return op
        if average is None:
            return reduce_ops.Average
        warnings.warn(  # scripts filter by the beginning of this message, which is Horovod's
            "Parameter `average` has been replaced with `op`: give op=hvd.Average or op=hvd.Sum",
            DeprecationWarning,
            stacklevel=2,
        )
        return reduce_ops.Average if average else reduce_ops.Sum

    return choose


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number of workers is a power of two (Rueda's Adasum accepts any number).

    >>> [size for size in range(9) if num_rank_is_power_2(size)]
    [1, 2, 4, 8]
    """
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def support_non_legacy_keras_optimizers() -> bool:
    """Return whether ``DistributedOptimizer`` takes the optimizers that Keras has had since 2.11: always.

    >>> support_non_legacy_keras_optimizers()
    True
    """
    return True


def split_list(l: Sequence[Value], n: int) -> list[Sequence[Value]]:  # noqa: E741
    """Split a list into n parts whose lengths differ by at most one.

    >>> split_list([1, 2, 3, 4, 5], 3)
    [[1, 2], [3, 4], [5]]
    """
    ends = [len(l) // n * part + min(part, len(l) % n) for part in range(n + 1)]
    return [l[start:end] for start, end in pairwise(ends)]


def is_iterable(x: object) -> bool:
    """Return whether an object is iterable."""
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether a version is at least another, by their numbers.

    >>> is_version_greater_equal_than("2.13.0+cpu", "2.6"), is_version_greater_equal_than("0.28.1+rueda", "0.29")
    (True, False)
    """
    return _version_numbers(ver) >= _version_numbers(target)


def _version_numbers(version: str) -> list[int]:
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[+a-z-]", version)[0])]
    return [*numbers, 0, 0, 0][:3]


def __getattr__(name: str) -> Any:
    if name in _BUILT:
        from rueda.hvd import basics  # imports torch

        return lambda verbose=False: getattr(basics, name)()
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.common.util", name)
