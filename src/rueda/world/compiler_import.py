"""Start without torch's compiler, whose import takes as long as that of torch itself.

``torch._dynamo`` is what ``torch.compile`` needs. torch also imports it where nothing is compiled: the first call of an
optimizer's ``add_param_group``, ``zero_grad``, ``state_dict`` or ``load_state_dict`` wraps the method in
``torch._dynamo.disable``, every ``step`` marks where a compiled graph must end, and ``DistributedDataParallel`` asks
for one option. In each worker that is 1.3 s of a core and 100 MB of memory, for a compiler that is not used.

:func:`spare_compiler` lets these functions skip the preparation. As soon as anything imports the compiler, they are
torch's own again, before the import begins, so compiled code never meets another function.
"""

from __future__ import annotations

import importlib.abc
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

_COMPILER = "torch._dynamo"


def spare_compiler() -> None:
    """Let torch's optimizers and DistributedDataParallel work without importing the compiler; may be called again."""
    if _COMPILER in sys.modules or any(isinstance(finder, _Restoring) for finder in sys.meta_path):
        return
    import torch
    from torch.nn.parallel import DistributedDataParallel

    optimizer = torch.optim.Optimizer
    direct_call, direct_step = _direct_call(None, True).__code__, _direct_step(None).__code__
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    prepared = [getattr(owner, name, None) for owner, name in (
        *((optimizer, name) for name in names), (DistributedDataParallel, "_inside_ddp_forward"),
    )]  # fmt: skip
    steps = [kind.step for kind in vars(torch.optim).values() if inspect.isclass(kind) and issubclass(kind, optimizer)]
    former: dict[FunctionType, CodeType] = {}
    for functions, name, code in ((prepared, "inner", direct_call), (steps, "_use_grad", direct_step)):
        for function in functions:
            found = _wrapper(function, name)
            # Another version of torch may wrap them otherwise; then they are left alone, and only time is lost.
            if found is not None and found not in former and found.__code__.co_freevars == code.co_freevars:
                former[found], found.__code__ = found.__code__, code
    sys.meta_path.insert(0, _Restoring(former))


@contextmanager
def default_compiler_options() -> Iterator[None]:
    """Answer DistributedDataParallel's question for the compiler's mode inside the block, without an import.

    The answer is the default, which only somebody who has loaded the compiler can have changed.
    """
    import torch

    if _COMPILER in sys.modules:
        yield
        return
    answer = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))
    torch.__dict__["_dynamo"] = answer
    try:
        yield
    finally:
        if torch.__dict__.get("_dynamo") is answer:
            del torch.__dict__["_dynamo"]  # torch imports the module when somebody asks for it


class _Restoring(importlib.abc.MetaPathFinder):
    """Gives functions their own code back when the compiler is about to be imported; it finds no module itself."""

    def __init__(self, former: dict[FunctionType, CodeType]) -> None:
        self._former = former

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        """Restore the functions before the compiler's own finder is asked."""
        if name == _COMPILER:  # the object stays in the list, from which to remove it now would skip the next finder
            for function, code in self._former.items():
                function.__code__ = code
            self._former = {}


def _wrapper(function: Any, name: str) -> FunctionType | None:
    """Return the wrapper of this name around a function, which may have others around it."""
    while function is not None and getattr(getattr(function, "__code__", None), "co_name", None) != name:
        function = getattr(function, "__wrapped__", None)
    return function if isinstance(function, FunctionType) else None


# The code that stands in for that of torch's wrappers: with the free variables of these.


def _direct_call(fn: Any, recursive: bool) -> FunctionType:
    def inner(*args: Any, **kwargs: Any) -> Any:
        recursive  # noqa: B018  # torch's wrapper has this free variable
        return fn(*args, **kwargs)

    assert isinstance(inner, FunctionType)
    return inner


def _direct_step(func: Any) -> FunctionType:
    def _use_grad(*args: Any, **kwargs: Any) -> Any:
        import torch

        with torch.set_grad_enabled(args[0].defaults["differentiable"]):
            return func(*args, **kwargs)

    assert isinstance(_use_grad, FunctionType)
    return _use_grad
