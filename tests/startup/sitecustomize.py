"""Lets the processes that tests start import torch sooner; Python itself imports this file when it starts.

``import torch`` takes 1.28 s of a core, and the tests do it hundreds of times; here it takes 0.77 s. Left out are:

- **Collections of garbage** while torch is imported, which creates little: 0.2 s. Afterwards they are as before.
- **Meta kernels** (``torch._meta_registrations``), by which operators find the shapes of their results without data:
  0.15 s. They are imported before what needs them, the compiler and libraries that compute on the device ``meta``. A
  script that does so itself would raise ``NotImplementedError``: its test takes this folder from ``PYTHONPATH``.
- **Primitive operators** (``torch._prims``), of which only the metaclass of ``torch.Generator`` is needed: 0.13 s. The
  compiler imports them.
- **The search for a caller's module**: for two operators that torch registers, :mod:`inspect` looks up the files of all
  modules that are loaded, a thousand, while the caller's frame has the name of its module: 0.06 s.

A process whose test chooses ``PYTHONPATH`` itself, and each process on another host, starts as users' do.
"""

from __future__ import annotations

import gc
import sys
from types import FrameType, ModuleType

_META = "torch._meta_registrations"
_NEED_META = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd")
_NEED_META += ("accelerate", "keras", "lightning", "transformers")  # they make models on the device meta


class _QuickTorch:
    """Finds torch, and sees the first module that needs its meta kernels before others on ``sys.meta_path`` do."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name == "torch":
            from importlib.machinery import PathFinder

            spec = PathFinder.find_spec(name)
            if spec is not None and spec.loader is not None:
                own = spec.loader.exec_module
                spec.loader.exec_module = lambda module: _without_collections(own, module)  # type: ignore[method-assign]
            return spec
        if name in _NEED_META:
            torch = sys.modules.get("torch")
            if torch is None or not getattr(torch.__spec__, "_initializing", False):  # torch names some of them itself
                sys.meta_path.remove(self)  # type: ignore[arg-type]  # from now on torch is imported as always
                if torch is not None:
                    _import_meta_kernels()
        return None


def _without_collections(own: object, module: ModuleType) -> None:
    import inspect

    collects, module_of = gc.isenabled(), inspect.getmodule

    def quick(object: object, _filename: str | None = None) -> ModuleType | None:
        if isinstance(object, FrameType):
            return sys.modules.get(object.f_globals["__name__"])
        return module_of(object, _filename)

    gc.disable()
    sys.modules[_META] = ModuleType(_META)
    inspect.getmodule = quick
    try:
        own(module)  # type: ignore[operator]
        _prepare_generators()
    finally:
        inspect.getmodule = module_of
        gc.freeze()  # modules are never freed, so later collections need not visit them
        if collects:
            gc.enable()


def _prepare_generators() -> None:
    """Give ``torch.Generator`` its metaclass, without which none can be made; ``torch._prims.rng_prims`` does so."""
    import torch
    from torch._opaque_base import OpaqueBaseMeta

    torch._C._set_generator_metaclass(OpaqueBaseMeta)  # type: ignore[attr-defined]


def _import_meta_kernels() -> None:
    from importlib import import_module

    sys.modules.pop(_META, None)
    sys.modules["torch"]._meta_registrations = import_module(_META)  # type: ignore[attr-defined]


sys.meta_path.insert(0, _QuickTorch())  # type: ignore[arg-type]
