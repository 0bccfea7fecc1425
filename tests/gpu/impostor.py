"""The impostor device: CPU memory and CPU kernels that torch takes for CUDA, MPS or XPU devices (``impostor.cpp``).

Importing this module loads the library, of the kind that the environment variable ``IMPOSTOR`` names, and replaces
those functions of ``torch.cuda``, ``torch.xpu`` or ``torch.mps`` that a CPU build of torch lacks. It must come before
torch, and cannot be undone: it belongs into a process of its own, such as those of ``@on_impostor`` (:mod:`gpu.bench`).
There are eight devices of CUDA and XPU.

Everything is complete when it returns, so streams and events order nothing. What the host would have to wait for, and
on which device and stream an event was recorded, is passed to the listeners (:mod:`gpu.recorder` is one).
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gpu import library

if "torch" in sys.modules or "IMPOSTOR" not in os.environ:
    raise ImportError("the impostor needs a process of its own: use @on_impostor of gpu.bench")
_kind = os.environ["IMPOSTOR"]
_library = ctypes.CDLL(str(library.build()))  # before torch, which asks once for the hooks of its devices

import torch  # noqa: E402

NUM_DEVICES = 8

_listeners: list[Callable[[str, Any], None]] = []


def listen(listener: Callable[[str, Any], None]) -> Callable[[], None]:
    """Call ``listener(what, where)`` for each event, wait and device change; return a function that ends this."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def set_capacity(num_bytes: int, device: int = 0) -> None:
    """Set the memory of a device; an allocation beyond it raises ``torch.OutOfMemoryError``."""
    _library.impostor_set_capacity(device, num_bytes)


def num_allocations(device: int) -> int:
    """Return how often memory of a device was allocated; 0 means that nothing has ever used this device."""
    return int(_library.impostor_num_allocations(device))


def _tell(what: str, where: Any = None) -> None:
    for listener in list(_listeners):
        listener(what, where)


def _index(device: Any = None) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return int(_library.impostor_device()) if index is None else index


def _set_device(device: Any) -> None:
    if _index(device) >= 0:
        _library.impostor_set_device(_index(device))
        _tell("set_device", _index(device))


def _exchange_device(device: int) -> int:
    before = _index()
    _set_device(device)
    return before


def _synchronize(device: Any = None) -> None:
    _tell("synchronize", _index(device))


class Stream(torch.Stream):
    """A stream as torch.cuda's: what it waits for is told to the listeners."""

    def __new__(cls, device: Any = None, priority: int = 0, *, stream_id: int | None = None) -> Stream:
        number = _library.impostor_new_stream() if stream_id is None else stream_id
        kind = int(torch._C._autograd.DeviceType.CUDA if _kind == "cuda" else torch._C._autograd.DeviceType.XPU)
        return super().__new__(cls, stream_id=number, device_index=_index(device), device_type=kind)

    @property
    def where(self) -> tuple[int, int]:
        """The device and the number of the stream; 0 is the default stream."""
        return self.device_index, self.stream_id

    def wait_event(self, event: Any) -> None:
        _tell("wait_event", (self.where, event.where))

    def wait_stream(self, stream: Any) -> None:
        _tell("wait_event", (self.where, stream.where))

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        _tell("stream.synchronize", self.where)


class Event:
    """An event as torch.cuda's: it occurs at once, and its time is that of the host."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.where: tuple[int, int] | None = None
        self.seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self.where, self.seconds = (stream or _current_stream()).where, time.perf_counter()
        _tell("record", self.where)

    def wait(self, stream: Any = None) -> None:
        (stream or _current_stream()).wait_event(self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _tell("event.synchronize", self.where)

    def elapsed_time(self, end: Event) -> float:
        return 1000 * (end.seconds - self.seconds)


def _current_stream(device: Any = None) -> Stream:
    return Stream(_index(device), stream_id=_library.impostor_stream(_index(device)))


def _set_stream(stream: Any) -> None:
    if stream is not None:  # as in CUDA, its device becomes the current one
        _library.impostor_set_device(stream.device_index)
        _library.impostor_set_stream(stream.device_index, stream.stream_id)


def _properties(device: Any = None) -> SimpleNamespace:
    index = _index(device)
    about = {"name": "Impostor", "uuid": f"GPU-{index}", "major": 9, "minor": 0, "multi_processor_count": 1}
    return SimpleNamespace(**about, total_memory=_library.impostor_capacity(index), has_fp64=True)


def _memory_info(device: Any = None) -> tuple[int, int]:
    total = _library.impostor_capacity(_index(device))
    return total - _library.impostor_allocated(_index(device)), total


def _default_generator(device: int) -> torch.Generator:
    _library.impostor_next_generator_is_default(device)
    return torch.Generator(device=torch.device(_kind, device))


_resize_on_host = torch.UntypedStorage.resize_


def _resize(storage: torch.UntypedStorage, num_bytes: int) -> torch.UntypedStorage:
    if storage.device.type != _kind:
        return _resize_on_host(storage, num_bytes)
    _library.impostor_resize_storage(storage._cdata, num_bytes)
    return storage


def _replace(module: Any, **functions: Any) -> None:
    for name, function in functions.items():
        setattr(module, name, function)


def _install_gpu(module: Any) -> None:
    """Replace what ``torch.cuda`` and ``torch.xpu`` have in common."""
    common = {
        "_lazy_init": lambda: None, "is_initialized": lambda: True, "current_device": _index,
        "device_count": lambda: NUM_DEVICES,
    }  # fmt: skip
    _replace(module.random, **common)
    _replace(
        module,
        **common,
        _initialized=True,
        is_available=lambda: True,
        set_device=_set_device,
        _exchange_device=_exchange_device,
        _maybe_exchange_device=_exchange_device,
        synchronize=_synchronize,
        Stream=Stream,
        Event=Event,
        current_stream=_current_stream,
        default_stream=lambda device=None: Stream(_index(device), stream_id=0),
        set_stream=_set_stream,
        get_device_name=lambda device=None: "Impostor",
        get_device_properties=_properties,
        memory_allocated=lambda device=None: _library.impostor_allocated(_index(device)),
        memory_reserved=lambda device=None: _library.impostor_allocated(_index(device)),
        max_memory_allocated=lambda device=None: _library.impostor_peak(_index(device)),
        reset_peak_memory_stats=lambda device=None: _library.impostor_reset_peak(_index(device)),
        mem_get_info=_memory_info,
        empty_cache=lambda: None,
        is_bf16_supported=lambda *args, **options: True,
        default_generators=tuple(_default_generator(device) for device in range(NUM_DEVICES)),
    )


def _install_cuda() -> None:
    from gpu.nccl import install_nccl

    _install_gpu(torch.cuda)
    _replace(torch.UntypedStorage, resize_=_resize)
    torch.cuda.get_device_capability = lambda device=None: (
        7,
        5,
    )  # without bf16 tensor cores: a recipe stays in float32
    install_nccl()


def _install_xpu() -> None:
    _install_gpu(torch.xpu)


def _install_mps() -> None:
    generator = _default_generator(0)
    torch.backends.mps.is_available = lambda: True
    _replace(
        torch.mps,
        synchronize=_synchronize,
        empty_cache=lambda: None,
        _get_default_mps_generator=lambda: generator,
        current_allocated_memory=lambda: _library.impostor_allocated(0),
        driver_allocated_memory=lambda: _library.impostor_allocated(0),
        recommended_max_memory=lambda: _library.impostor_capacity(0),
    )


for _name in ("allocated", "peak", "num_allocations", "capacity", "stream", "new_stream"):
    getattr(_library, f"impostor_{_name}").restype = ctypes.c_int64
_library.impostor_set_capacity.argtypes = [ctypes.c_int, ctypes.c_int64]
_library.impostor_resize_storage.argtypes = [ctypes.c_void_p, ctypes.c_int64]
_library.impostor_set_stream.argtypes = [ctypes.c_int, ctypes.c_int64]
{"cuda": _install_cuda, "xpu": _install_xpu, "mps": _install_mps}[_kind]()
