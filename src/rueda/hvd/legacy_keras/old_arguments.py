"""Arguments and methods of Keras 2 that Keras 3, and partly tf_keras, refuse or ignore.

=======================================  ==========================================================================
``Adam(lr=0.01)``                        ``learning_rate=0.01``. tf_keras takes ``lr`` and trains at the default rate
``SGD(0.01, decay=1e-4)``                the rate of step t is ``learning_rate / (1 + decay * t)``, as in Keras 2
``compile(experimental_run_tf_function=  left out: Keras has one way to run a model
False)``
``model.fit_generator(generator)``       ``model.fit(generator)``; likewise ``evaluate_...`` and ``predict_generator``
``history["acc"]``, ``val_acc``          the metric ``accuracy``, if there is none called ``acc``; also as ``monitor=``
=======================================  ==========================================================================

The classes are changed in place, because a script may have imported them already. What is changed in Keras' own classes
is marked with an attribute, so that it is changed once.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

from rueda.hvd.legacy_keras import note

_GENERATORS = {"fit_generator": "fit", "evaluate_generator": "evaluate", "predict_generator": "predict"}
# Of these methods, by the place that they had in Keras 2; today's `fit` has other ones first.
_PLACES = {
    "fit": ("steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data", "validation_steps",
            "validation_freq", "class_weight", "max_queue_size", "workers", "use_multiprocessing", "shuffle",
            "initial_epoch"),
    "evaluate": ("steps", "callbacks", "max_queue_size", "workers", "use_multiprocessing", "verbose"),
    "predict": ("steps", "callbacks", "max_queue_size", "workers", "use_multiprocessing", "verbose"),
}  # fmt: skip
_QUEUE = ("max_queue_size", "workers", "use_multiprocessing")
_COMPILE = ("experimental_run_tf_function", "cloning")


def patch_on_import() -> None:
    """Change Keras 3 and tf_keras: now if they are imported, else as soon as they have been."""
    for name, patch in _PATCHES.items():
        module = sys.modules.get(name)
        if module is not None:
            patch(module)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds ``keras`` and ``tf_keras`` as Python would, and lets their loader change them after it has run them."""

    _searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of one of the two packages; None for other modules."""
        if fullname not in _PATCHES or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_patch(module: ModuleType) -> None:
                run(module)
                _PATCHES[fullname](module)

            spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec


def _once(owner: Any) -> bool:
    """Return whether a class has not been changed yet, and mark it."""
    if "_rueda_legacy" in vars(owner):
        return False
    owner._rueda_legacy = True
    return True


def _owner(kind: Any, method: str) -> Any:
    return next(base for base in kind.__mro__ if method in vars(base))


def _patch_keras_3(keras: Any) -> None:
    """Change the base class of Keras 3's optimizers, its models and its history."""
    optimizer = keras.optimizers.Optimizer
    if not _once(optimizer):
        return
    base = _owner(optimizer, "get_config")
    begin, step = base.__init__, optimizer._backend_update_step

    @functools.wraps(begin)
    def __init__(self: Any, learning_rate: Any = None, *args: Any, **kwargs: Any) -> None:
        learning_rate, decay = _rate_and_decay(self, learning_rate, kwargs)
        begin(self, learning_rate, *args, **kwargs)
        self._legacy_decay = decay

    @functools.wraps(step)
    def _backend_update_step(self: Any, grads: Any, variables: Any, learning_rate: Any) -> None:
        if self._legacy_decay:
            rate = keras.ops.convert_to_tensor(learning_rate)
            learning_rate = rate / (1 + self._legacy_decay * keras.ops.cast(self.iterations, rate.dtype))
        step(self, grads, variables, learning_rate)

    base.__init__, optimizer._backend_update_step = __init__, _backend_update_step
    _keep_decay_in_config(base)
    _patch_model(keras)
    _patch_history(keras)


def _patch_tf_keras(tf_keras: Any) -> None:
    """Change the base class of tf_keras' optimizers; its models take the old arguments themselves."""
    import tensorflow as tf

    optimizer = tf_keras.optimizers.Optimizer
    if not _once(optimizer):
        return
    base = _owner(optimizer, "_process_kwargs")
    process, build, apply = base._process_kwargs, optimizer._build_learning_rate, optimizer._internal_apply_gradients
    rate_of = base.learning_rate

    def _process_kwargs(self: Any, kwargs: dict[str, Any]) -> None:
        self._legacy_rate, self._legacy_decay = _rate_and_decay(self, None, kwargs)
        process(self, kwargs)

    def _build_learning_rate(self: Any, learning_rate: Any) -> Any:
        return build(self, learning_rate if self._legacy_rate is None else self._legacy_rate)

    def _internal_apply_gradients(self: Any, grads_and_vars: Any) -> Any:
        self._legacy_stepping = True  # the update reads the rate with its decay, callbacks read it without
        try:
            return apply(self, grads_and_vars)
        finally:
            self._legacy_stepping = False

    def learning_rate(self: Any) -> Any:
        rate = rate_of.fget(self)
        if self._legacy_decay and getattr(self, "_legacy_stepping", False):
            return rate / (1 + self._legacy_decay * tf.cast(self.iterations, rate.dtype))
        return rate

    base._process_kwargs, base.learning_rate = _process_kwargs, property(learning_rate, rate_of.fset)
    optimizer._build_learning_rate = _build_learning_rate
    optimizer._internal_apply_gradients = _internal_apply_gradients
    _keep_decay_in_config(base)
    _patch_history(tf_keras)


_PATCHES: dict[str, Callable[[Any], None]] = {"keras": _patch_keras_3, "tf_keras": _patch_tf_keras}


def _rate_and_decay(optimizer: Any, rate: Any, kwargs: dict[str, Any]) -> tuple[Any, float]:
    """Take ``lr`` and ``decay`` out of the arguments of an optimizer."""
    name = type(optimizer).__name__
    if "lr" in kwargs:
        rate = kwargs.pop("lr")
        note(f"{name}(lr={rate}) is taken as learning_rate={rate}")
    decay = float(kwargs.pop("decay", None) or 0.0)
    if decay:
        note(f"{name}(decay={decay}) is taken: the rate of step t is learning_rate / (1 + {decay} t)")
    return rate, decay


def _keep_decay_in_config(base: Any) -> None:
    """Let a copy of an optimizer by its configuration, as ``DistributedOptimizer`` makes one, have the same decay."""
    config = base.get_config

    @functools.wraps(config)
    def get_config(self: Any) -> dict[str, Any]:
        found: dict[str, Any] = config(self)
        return {**found, "decay": self._legacy_decay} if self._legacy_decay else found

    base.get_config = get_config


def _patch_model(keras: Any) -> None:
    """Let Keras 3's models take the old arguments of ``compile``, and give them the old methods."""
    owner = _owner(keras.Model, "compile")
    compiles = owner.compile

    @functools.wraps(compiles)
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in _COMPILE:
            if name in kwargs:
                note(f"compile({name}={kwargs.pop(name)}) has no effect: Keras 3 has one way to run a model")
        compiles(self, *args, **kwargs)

    owner.compile = compile
    for old, new in _GENERATORS.items():
        if not hasattr(keras.Model, old):
            setattr(owner, old, _generator_method(old, new))


def _generator_method(old: str, new: str) -> Callable[..., Any]:
    def method(self: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        note(f"{old} is taken as {new}")
        kwargs |= dict(zip(_PLACES[new], args, strict=False))
        if dropped := [name for name in _QUEUE if kwargs.pop(name, None) is not None]:
            note(f"{old}({', '.join(dropped)}) has no effect: give them to a keras.utils.PyDataset")
        if kwargs.pop("validation_freq", 1) != 1:
            note(f"{old}(validation_freq) has no effect")
        return getattr(self, new)(generator, **kwargs)

    method.__name__ = old
    method.__doc__ = f"Call ``{new}``, as Keras 2 did."
    return method


class OldNames(dict[str, Any]):
    """Metrics by name, in which ``acc`` and ``val_acc`` are found as ``accuracy`` and ``val_accuracy``.

    >>> logs = OldNames(loss=1.0, val_accuracy=0.5)
    >>> logs["val_acc"], logs.get("val_acc"), list(logs), logs.get("acc")
    (0.5, 0.5, ['loss', 'val_accuracy'], None)
    """

    NEW: ClassVar = {"acc": "accuracy", "val_acc": "val_accuracy"}

    def __missing__(self, name: str) -> Any:
        if name in self.NEW and self.NEW[name] in self:
            return dict.__getitem__(self, self.NEW[name])
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the metric of a name; ``default`` if there is none."""
        try:
            return self[name]
        except KeyError:
            return default


def _patch_history(keras: Any) -> None:
    """Let callbacks and the history of ``fit`` find ``acc`` and ``val_acc``."""
    begin, end = keras.callbacks.History.on_train_begin, keras.callbacks.CallbackList.on_epoch_end

    def on_train_begin(self: Any, logs: Any = None) -> None:
        begin(self, logs)
        self.history = OldNames(self.history)

    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        logs = OldNames(logs or {})
        for callback in self.callbacks:  # such as EarlyStopping(monitor="val_acc")
            name = getattr(callback, "monitor", None)
            if name in OldNames.NEW and name not in logs and logs.get(name) is not None:
                callback.monitor = OldNames.NEW[name]
        end(self, epoch, logs)

    keras.callbacks.History.on_train_begin, keras.callbacks.CallbackList.on_epoch_end = on_train_begin, on_epoch_end
