"""The recipe: how to train a task. A TOML file of flat keys; a choice that was planned carries its reason.

::

    workers = 8
    batch = 128        # noise scale 980 at step 2,000
    rate = 0.05
    base_batch = 128   # rate was tuned here
    scaling = "linear"

The global batch is ``workers × batch × accumulate``, and the rate used is ``rate × rule(global batch / base_batch)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import tomlkit
from tomlkit.exceptions import TOMLKitError

from rueda.errors import RecipeError
from rueda.files.atomic import write_atomically
from rueda.records.recipe.rules import check
from rueda.records.recipe.values import parse_setting, take_value

Scalar = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train: validated when made, so that a contradiction is refused before anything runs."""

    # The workers and their batch.
    workers: int = 1
    """how many workers train"""
    batch: int = 64
    """examples a worker takes through the network at once"""
    accumulate: int = 1
    """such batches a worker adds up before an update"""
    epochs: int = 5
    """passes over the training data"""

    # The optimizer.
    optimizer: str = "sgd"
    """one of sgd, adam, adamw, lars, larc, lamb, novograd"""
    rate: float = 0.05
    """learning rate at the base batch"""
    momentum: float = 0.9
    """of sgd, lars and larc"""
    nesterov: bool = False
    """look ahead with the momentum"""
    betas: tuple[float, ...] = ()
    """decay of the averages of adam, adamw, lamb, novograd; empty: the optimizer's own"""
    weight_decay: float = 0.0
    """not applied to biases and norms"""
    trust: float | None = None
    """trust coefficient of lars and larc; None: the optimizer's own"""
    clip: float | None = None
    """largest norm of the whole gradient"""
    adascale: bool = False
    """multiply the rate by AdaScale's gain and let it drive the schedule's clock"""

    # The rate.
    base_batch: int | None = None
    """global batch for which the rate was chosen; None: one worker's"""
    scaling: str = "none"
    """how the rate grows with global batch / base batch: none, linear, sqrt, legw"""
    warmup_epochs: float = 0.0
    """epochs until the scaled rate is reached"""
    warmup: str = "gradual"
    """gradual: from the base rate, a constant more each step; constant: the base rate until then; from-zero"""
    schedule: str = "constant"
    """after the warm-up: constant, step, polynomial, cosine, one-cycle"""
    milestones: tuple[float, ...] = ()
    """epochs at which the step schedule decays, or batch growth grows"""
    decay: float = 0.1
    """factor of the step schedule"""
    power: float = 2.0
    """of the polynomial schedule"""
    final_rate: float = 0.0
    """where polynomial and cosine end, as a fraction of the peak"""
    momentum_correction: bool = False
    """rescale the momentum of lars when the rate changes; torch's sgd keeps the rate outside and needs none"""

    # The network.
    model: Mapping[str, Scalar] = field(default_factory=dict)
    """arguments for the task's model factory, such as batch_norm = true"""
    ghost_batch: int | None = None
    """normalise over ghost batches of this many examples"""
    sync_batch_norm: bool = False
    """normalise over the batches of all workers"""
    recalibrate: str = "auto"
    """recompute batch-norm statistics before evaluation: auto (when the steps are too few), always, never"""

    # Noise, growth, regime.
    gradient_noise: float = 0.0
    """multiplicative noise: 1 restores the covariance of the base batch, 0 adds none"""
    additive_noise: float = 0.0
    """eta of annealed Gaussian noise on the gradient"""
    growth_factor: float | None = None
    """multiply the batch by this at each milestone, instead of decaying the rate"""
    growth_from_noise: bool = False
    """let the batch follow the measured gradient noise scale upwards, at most doubling at a time"""
    largest_batch: int | None = None
    """growth stops at this global batch"""
    largest_local_batch: int | None = None
    """what a worker's memory holds; more is accumulated"""
    keep_updates: bool = False
    """train longer: as many updates as one worker would make"""

    # Numbers and speed.
    precision: str = "float32"
    """float32, float64, or autocast to bf16 or fp16"""
    channels_last: bool = True
    """keep images and convolutions in channels-last order, which CPUs and GPUs prefer"""
    compile: bool = False
    """torch.compile the model"""

    # The data.
    partition: str = "shards"
    """shards: each epoch's order is cut between the workers; random: each draws from the whole set"""
    remainder: str = "drop"
    """what becomes of a last batch that is not full: drop or pad"""
    seed: int = 0
    """of everything random"""

    # When to stop, what to keep.
    target_accuracy: float | None = None
    """stop when the last `patience` epochs all reached this test accuracy"""
    patience: int = 1
    """epochs in a row that must reach the target"""
    log_every: int | None = None
    """steps between rows in metrics.jsonl, beside the one an epoch"""
    noise_scale_every: int | None = None
    """steps between measurements of the gradient noise scale, a row each; None: it is not measured"""
    noise_scale_memory: int = 200
    """measurements that its moving average remembers, and between two growths of the batch"""
    noise_scale_groups: bool = False
    """measure it for each part of the model apart, too"""
    checkpoint_every: int | None = None
    """steps between checkpoints, beside the one an epoch"""
    keep: int = 2
    """how many of the last checkpoints stay"""

    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)
    """why a value was chosen, by field: the comments of the file"""

    def __post_init__(self) -> None:
        check(self, field_names())

    @property
    def local_batch(self) -> int:
        """Examples of one worker in an update."""
        return self.batch * self.accumulate

    @property
    def global_batch(self) -> int:
        """Examples of all workers in an update."""
        return self.workers * self.local_batch

    @property
    def scale(self) -> float:
        """How many times larger the global batch is than the one that the rate was chosen for."""
        return self.global_batch / (self.base_batch or self.local_batch)

    def change(self, **changes: Any) -> Recipe:
        """Give the same recipe with other values; reasons of changed fields go."""
        _check_names(changes)
        reasons = {name: text for name, text in self.reasons.items() if name not in changes}
        return replace(self, **{"reasons": reasons, **changes})

    def changes_from(self, base: Recipe) -> dict[str, Any]:
        """Return the fields in which this recipe differs from another, with its own values.

        >>> Recipe(rate=0.1, workers=8).changes_from(Recipe(rate=0.1, clip=1.0))
        {'workers': 8, 'clip': None}
        """
        return {name: getattr(self, name) for name in field_names() if getattr(self, name) != getattr(base, name)}

    def with_values(self, values: Mapping[str, Any]) -> Recipe:
        """Change fields to values as a file holds them; each is checked against the field's type.

        >>> Recipe().with_values({"milestones": [2, 4], "clip": None}).milestones
        (2.0, 4.0)
        """
        return self.change(**_take_values(values))

    def with_settings(self, settings: Iterable[str]) -> Recipe:
        """Apply settings as typed on a command line.

        >>> Recipe().with_settings(["batch=512", "optimizer=lamb", "milestones=2,4", "model.width=2"]).batch
        512
        """
        changes: dict[str, Any] = {}
        model = dict(self.model)
        for setting in settings:
            name, text = parse_setting(setting)
            if name.startswith("model."):
                model[name.removeprefix("model.")] = take_value(name, text, Scalar)
                changes["model"] = model
            else:
                changes |= _take_values({name: text})
        return self.change(**changes)

    def to_toml(self) -> str:
        """Write the recipe as TOML, reasons as comments; fields that are None are left out."""
        document = tomlkit.document()
        for name in field_names():
            value = getattr(self, name)
            if value is None or name == "model":
                continue
            item = tomlkit.item(list(value) if isinstance(value, tuple) else value)
            if name in self.reasons:
                item.comment(" ".join(self.reasons[name].split()))
            document.add(name, item)
        if self.model:
            document.add("model", tomlkit.item(dict(self.model)))
        return tomlkit.dumps(document)

    @classmethod
    def from_toml(cls, text: str, *, base: Recipe | None = None) -> Recipe:
        """Read a recipe; keys that are absent keep the value of ``base`` (or the default).

        >>> recipe = Recipe.from_toml("batch = 128  # noise scale 980\\nworkers = 8")
        >>> recipe.global_batch, recipe.reasons["batch"]
        (1024, 'noise scale 980')
        """
        values, reasons = _read_fields(text)
        start = base or cls()
        return replace(start, reasons={**start.reasons, **reasons}, **values)

    @classmethod
    def load(cls, file: Path, *, base: Recipe | None = None) -> Recipe:
        """Read a recipe file."""
        return RecipeFile.read(file).recipe(base=base)

    def save(self, file: Path) -> None:
        """Write a recipe file, whole or not at all."""
        write_atomically(file, self.to_toml().encode())


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """The text of a recipe file, read once: the file may be a pipe, or be rewritten while workers start."""

    name: str
    """as the user gave it; stands before what is wrong in the text"""
    text: str

    @classmethod
    def read(cls, file: Path) -> RecipeFile:
        """Read a file."""
        try:
            return cls(name=str(file), text=file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(str(file), expected="a recipe file", got=str(error), do="check the path") from None

    def recipe(self, *, base: Recipe | None = None) -> Recipe:
        """Give the recipe; keys that are absent keep the value of ``base`` (or the default)."""
        try:
            return Recipe.from_toml(self.text, base=base)
        except RecipeError as error:
            raise RecipeError(f"{self.name}: {error}") from None

    def fields(self) -> dict[str, Any]:
        """Give the fields that the text sets; whether they fit together depends on the recipe that it changes."""
        try:
            return _read_fields(self.text)[0]
        except RecipeError as error:
            raise RecipeError(f"{self.name}: {error}") from None


def field_names() -> list[str]:
    """List the fields that a recipe file may have."""
    return [item.name for item in fields(Recipe) if item.name != "reasons"]


def _read_fields(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the values of a TOML text and their reasons, which are its comments."""
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise RecipeError(f"expected TOML (name = value, a line each), got: {error}; correct the file") from None
    values = _take_values(document.unwrap())
    comments = {name: _comment(document.item(name)) for name in document}
    return values, {name: comment for name, comment in comments.items() if comment}


def _comment(item: Any) -> str:
    return str(item.trivia.comment).lstrip("# ").strip()


def _take_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the names of fields, and convert each value to the type that its field declares."""
    _check_names(values)
    hints = get_type_hints(Recipe)
    return {name: take_value(name, value, hints[name]) for name, value in values.items()}


def _check_names(names: Iterable[str]) -> None:
    import difflib

    for name in names:
        if name not in field_names() and name != "reasons":
            close = difflib.get_close_matches(name, field_names(), 1)
            hint = f"did you mean {close[0]}?" if close else "see `rueda recipe fields`"
            raise RecipeError("recipe", expected="a known field", got=name, do=hint)


def describe_fields() -> list[tuple[str, str, str]]:
    """List each field's name, default and meaning, as written beside the fields above."""
    import ast
    import inspect
    from itertools import pairwise

    tree = ast.parse(inspect.getsource(Recipe))
    body = tree.body[0].body  # type: ignore[attr-defined]
    meanings = {
        ast.unparse(item.target): ast.literal_eval(text.value)
        for item, text in pairwise(body)
        if isinstance(item, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    defaults = Recipe()
    return [(name, _show(getattr(defaults, name)), meanings[name]) for name in field_names()]


def _show(value: Any) -> str:
    return "none" if value is None else tomlkit.item(list(value) if isinstance(value, tuple) else value).as_string()
