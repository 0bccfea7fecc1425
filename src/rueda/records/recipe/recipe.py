"""The recipe says how to train a task. On disk it is a TOML file of flat keys; a comment gives the reason of a value.

::

    workers = 8
    batch = 128        # noise scale 980 at step 2,000
    rate = 0.05
    base_batch = 128   # rate was tuned here
    scaling = "linear"

The global batch is ``workers × batch × accumulate``, and the rate used is ``rate × rule(global batch / base_batch)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import tomlkit
from tomlkit.exceptions import TOMLKitError

from rueda.errors import RecipeError, read_failure, suggest
from rueda.files.atomic import write_atomically
from rueda.files.text import read_text
from rueda.records.recipe.default_rates import DEFAULT_RATES, INSTEAD
from rueda.records.recipe.parallel_form import PIPELINES_ALONE, has_pipeline, mesh_of
from rueda.records.recipe.rules import check
from rueda.records.recipe.values import parse_setting, take_value

Scalar = bool | int | float | str
_OTHER_NAMES = {"lr": "rate", "learning_rate": "rate", "batch_size": "batch", "local_batch": "batch"}
"""names that other libraries give to fields of a recipe, for the advice on an unknown field"""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train a task. A recipe is validated when it is created, before anything runs."""

    # The workers and their batch.
    workers: int = 1
    """number of data-parallel workers"""
    batch: int = 64
    """examples in one forward and backward pass of a worker"""
    accumulate: int = 1
    """gradient accumulation: batches of a worker in one update, whose gradients are all-reduced once (`no_sync`)"""
    epochs: int = 5
    """passes over the training data"""

    # The optimizer.
    optimizer: str = "sgd"
    """one of sgd, adam, adamw, lars, larc, lamb, novograd"""
    rate: float = 0.05
    """learning rate, as tuned for the base batch"""
    momentum: float = 0.9
    """momentum of sgd, lars and larc"""
    nesterov: bool = False
    """use Nesterov momentum"""
    betas: tuple[float, ...] = ()
    """decay of the moving averages of adam, adamw, lamb, novograd; empty: the optimizer's defaults"""
    weight_decay: float = 0.0
    """weight decay; biases and normalisation parameters have none"""
    trust: float | None = None
    """trust coefficient of lars and larc; none: the optimizer's default"""
    clip: float | None = None
    """clip the norm of the whole gradient to this; none: no clipping"""
    ema_decay: float | None = None
    """decay, at the base batch, of the moving average of the weights that is evaluated; none: no average"""
    adascale: bool = False
    """multiply the rate by AdaScale's gain, which also advances the schedule"""

    # The rate.
    base_batch: int | None = None
    """global batch for which the rate was tuned; none: the batch of one worker"""
    scaling: str = "none"
    """how the rate grows with global batch / base batch: none, linear, sqrt, legw"""
    warmup_epochs: float = 0.0
    """length of the warm-up to the scaled rate, in epochs"""
    warmup: str = "gradual"
    """gradual: rises linearly from the base rate; from-zero: linearly from 0; constant: stays at the base rate"""
    schedule: str = "constant"
    """learning-rate schedule after the warm-up: constant, step, polynomial, cosine, one-cycle"""
    milestones: tuple[float, ...] = ()
    """epochs at which the step schedule decays the rate, or at which the batch grows"""
    decay: float = 0.1
    """factor by which the step schedule decays the rate"""
    power: float = 2.0
    """exponent of the polynomial schedule"""
    final_rate: float = 0.0
    """last rate of polynomial and cosine schedules, as a fraction of the peak rate"""
    momentum_correction: bool = False
    """rescale the momentum of lars when the rate changes; torch's sgd does not need it"""

    # How often the workers exchange.
    sync_every: int = 1
    """local SGD: updates of each worker by its own gradients between two exchanges of parameters; 1: none"""
    sync_from_epoch: int = 0
    """post-local SGD: until this epoch the gradients are averaged at every update"""
    outer_optimizer: str = "average"
    """what an exchange makes of the workers' parameters: average, or nesterov (DiLoCo): a step towards their average"""
    outer_rate: float = 0.7
    """learning rate of the outer nesterov"""
    outer_momentum: float = 0.9
    """momentum of the outer nesterov"""
    sync_fragments: int = 1
    """exchange the parameters in so many fragments of about equal bytes, in turn, each every `sync_every` updates"""
    sync_delay: int = 0
    """updates that are computed while an exchange is under way, after which its result is used; 0: wait for it"""
    sync_mix: float = 0.5
    """with `sync_delay`: share of its own parameters, updated meanwhile, that a worker keeps when the result is used"""

    # The network.
    model: Mapping[str, Scalar] = field(default_factory=dict)
    """keyword arguments of the task's model factory, such as batch_norm = true"""
    ghost_batch: int | None = None
    """ghost batch norm: normalise over groups of this many examples"""
    sync_batch_norm: bool = False
    """synchronised batch norm: normalise over the batches of all workers"""
    recalibrate: str = "auto"
    """recompute batch-norm statistics before evaluation: auto (after few steps), always, never"""

    # Noise, growth, regime.
    gradient_noise: float = 0.0
    """multiplicative gradient noise; 1 restores the gradient covariance of the base batch, 0 adds none"""
    additive_noise: float = 0.0
    """eta of the annealed Gaussian noise that is added to the gradient"""
    growth_factor: float | None = None
    """multiply the batch by this at each milestone instead of decaying the rate"""
    growth_from_noise: bool = False
    """grow the batch to the measured gradient noise scale, at most doubling it each time"""
    largest_batch: int | None = None
    """largest global batch that growth may reach; from there on the rate falls instead"""
    largest_local_batch: int | None = None
    """largest local batch that fits in a worker's memory; larger ones use gradient accumulation"""
    evaluation_batch: int | None = None
    """examples in one forward pass of an evaluation, halved while memory runs out; none: chosen by the device"""
    keep_updates: bool = False
    """train for more epochs, so that as many updates are made as by one worker"""

    # Numbers and speed.
    precision: str = "auto"
    """float32, float64, mixed precision (bf16, fp16), or auto: bf16 on a GPU that has it, else float32"""
    tf32: bool = True
    """on a GPU, compute float32 products and convolutions in TF32"""
    cudnn_benchmark: bool = True
    """on a GPU, let cuDNN time its convolution algorithms at the first step"""
    channels_last: bool = True
    """channels-last memory format for images and convolutions, which is faster"""
    compile: bool = False
    """compile the model with torch.compile"""
    bucket_megabytes: float | None = None
    """size of the buckets in which gradients are all-reduced; none: torch's 25"""
    static_graph: bool = False
    """promise that every step uses the same parameters, so that the all-reduce needs no search for unused ones"""
    gradient_compression: str = "none"
    """what an all-reduce of gradients sends: none (all of them), fp16 or bf16 (half of the bytes), powersgd (factors of
    a low rank)"""
    powersgd_rank: int = 2
    """rank of PowerSGD's factors: more are nearer to the gradient, and more bytes"""
    powersgd_start: int = 10
    """updates with the whole gradient before PowerSGD begins"""
    activation_checkpointing: bool = False
    """keep the inputs of the model's layers only and compute them again in the backward pass: less memory, more time"""
    parallel: str = "data"
    """what the workers divide: data (each has the whole model), sharded (the same, but each keeps a part of every
    parameter), pipeline (some layers), tensor (a part of every matrix), or two of them, such as data 2 x tensor 2"""
    pipeline_schedule: str = "1f1b"
    """the schedule of a pipeline: gpipe, 1f1b or interleaved"""
    micro_batches: int | None = None
    """parts of a batch that pass through a pipeline one behind the other; none: accumulate, or 4 for each stage"""
    loader_processes: int | None = None
    """processes of each worker that read a torch data set in advance; none: 2 on a GPU, 0 (no process) elsewhere"""

    # The data.
    partition: str = "shards"
    """shards: the workers share each epoch's examples; random: each worker draws from all examples"""
    remainder: str = "drop"
    """what happens to a last batch that is not full: drop or pad"""
    validation: float | None = None
    """fraction of the training data that is held out, so that choices are not made on test data; none: no such part"""
    seed: int = 0
    """seed of all random numbers"""

    # When to stop, what to keep.
    target_accuracy: float | None = None
    """stop when `patience` epochs in a row reach this accuracy, on validation or else test data"""
    target: float | None = None
    """stop when `patience` epochs in a row reach this value of the metric, or of `target_metric`"""
    target_metric: str | None = None
    """name of the metric that `target` is about, loss included; none: the task's primary metric"""
    patience: int = 1
    """number of epochs in a row that must reach the target"""
    log_every: int | None = None
    """also write a row of metrics every so many steps; none: one row per epoch"""
    noise_scale_every: int | None = None
    """measure the gradient noise scale every so many steps; none: never"""
    noise_scale_memory: int = 200
    """measurements in the noise scale's moving average, and between two growths of the batch"""
    noise_scale_groups: bool = False
    """also measure the noise scale of each part of the model"""
    checkpoint_every: int | None = None
    """also save a checkpoint every so many steps; none: one per epoch"""
    checkpoint_minutes: float | None = None
    """also save a checkpoint when the last one is so many minutes old"""
    keep: int = 2
    """how many of the latest checkpoints are kept"""
    asynchronous_checkpoints: bool = True
    """train on while a copy in memory is written as the checkpoint; false: wait, and need no memory for copies"""
    elastic_batch: str = "keep"
    """when the workers of an elastic job change: keep the global batch, or scale it and the rate with the workers"""
    commit_every: int | None = None
    """in an elastic job, copy the state into memory every so many steps; none: as often as takes 1 % of the time"""
    compare_every: int = 100
    """every so many steps, and before a checkpoint, compare the workers' parameters and speed; 0: never"""
    on_divergence: str = "stop"
    """if gradients are not finite: stop, skip the update, or roll-back to the last checkpoint at half the rate"""

    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)
    """why a value was chosen, by field name: the comments of the TOML file"""

    def __new__(cls, *_: Any, **values: Any) -> Recipe:
        """Refuse an unknown field with a suggestion, before the generated ``__init__`` raises a TypeError."""
        _check_names(values)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check(self, field_names())

    @property
    def local_batch(self) -> int:
        """The examples that one worker contributes to an update."""
        return self.batch * self.accumulate

    @property
    def global_batch(self) -> int:
        """The examples of all workers in one update."""
        return self.workers * self.local_batch

    def in_data_workers(self) -> Recipe:
        """Return the recipe whose workers are those that divide the data: of a pipeline or a tensor group, one for all.

        >>> Recipe(workers=4, batch=8, parallel="data 2 x pipeline 2").in_data_workers().global_batch
        16
        """
        if self.workers == 1:  # one worker has the whole model in each form
            return self
        return self.change(workers=mesh_of(self.parallel, self.workers).replicas)

    @property
    def is_local(self) -> bool:
        """Whether the workers make updates of their own and exchange parameters instead of gradients."""
        return self.sync_every > 1 or self.outer_optimizer != "average"

    @property
    def scale(self) -> float:
        """The global batch divided by the batch for which the rate was tuned."""
        return self.scale_of(self.global_batch)

    def scale_of(self, global_batch: int) -> float:
        """Return a global batch, such as one that has grown, divided by the batch for which the rate was tuned."""
        return global_batch / (self.base_batch or self.local_batch)

    def change(self, **changes: Any) -> Recipe:
        """Return the recipe with other values; the reasons of fields that change are dropped, new ones are added.

        Another form without a pipeline gives the fields of pipelines their defaults.

        >>> Recipe(parallel="pipeline", micro_batches=8).change(parallel="data").micro_batches is None
        True
        """
        _check_names(changes)
        if changes.get("parallel", self.parallel) != self.parallel and not has_pipeline(changes["parallel"]):
            changes = {**PIPELINES_ALONE, **changes}
        reasons = {name: text for name, text in self.reasons.items() if name not in changes}
        return replace(self, **{**changes, "reasons": {**reasons, **changes.get("reasons", {})}})

    def overlay(self, **changes: Any) -> Recipe:
        """Change fields as a user asks: a new optimizer without a rate gets its default one (``default_rates.py``).

        >>> recipe = Recipe(rate=0.1).overlay(optimizer="lamb")
        >>> recipe.rate, recipe.reasons["rate"]
        (0.005, 'instead of 0.1, which was tuned for sgd')
        """
        optimizer = changes.get("optimizer", self.optimizer)
        if optimizer != self.optimizer and optimizer in DEFAULT_RATES and "rate" not in changes:
            rates, reason = DEFAULT_RATES[optimizer], dict[str, str]()
            if rates["rate"] != self.rate:
                reason["rate"] = f"{INSTEAD} {self.rate:g}, which was tuned for {self.optimizer}"
            changes = {**rates, **changes, "reasons": {**reason, **changes.get("reasons", {})}}
        return self.change(**changes)

    @property
    def rate_note(self) -> str | None:
        """A line for the terminal, if the rate is a default that came with another optimizer."""
        reason = self.reasons.get("rate", "")
        if not reason.startswith(INSTEAD):
            return None
        return f"optimizer {self.optimizer}: learning rate {self.rate:g} {reason}; choose with --set rate=..."

    def changes_from(self, base: Recipe) -> dict[str, Any]:
        """Return the fields in which this recipe differs from another, with its own values.

        >>> Recipe(rate=0.1, workers=8).changes_from(Recipe(rate=0.1, clip=1.0))
        {'workers': 8, 'clip': None}
        """
        return {name: getattr(self, name) for name in field_names() if getattr(self, name) != getattr(base, name)}

    def with_values(self, values: Mapping[str, Any]) -> Recipe:
        """Change fields to values as a TOML file holds them; each is converted to its field's type.

        >>> Recipe().with_values({"milestones": [2, 4], "clip": None}).milestones
        (2.0, 4.0)
        """
        return self.overlay(**_take_values(values))

    def with_settings(self, settings: Iterable[str]) -> Recipe:
        """Apply settings as typed on a command line: ``name=value``, where the value is TOML or bare text.

        >>> Recipe().with_settings(["optimizer=lamb", "milestones=[2, 4]", "model.width=2"]).milestones
        (2.0, 4.0)
        """
        changes: dict[str, Any] = {}
        model = dict(self.model)
        for setting in settings:
            name, value = parse_setting(setting)
            if name.startswith("model."):
                quoted = setting.rstrip().endswith(("'", '"'))
                model[name.removeprefix("model.")] = value if quoted else take_value(name, value, Scalar)
                changes["model"] = model
            else:
                changes |= _take_values({name: value})
        return self.overlay(**changes)

    def to_toml(self) -> str:
        """Return the recipe as TOML with its reasons as comments; fields that are None are left out."""
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
        """Read a recipe from TOML; a missing key keeps the value of ``base``, or else the default.

        >>> recipe = Recipe.from_toml("batch = 128  # noise scale 980\\nworkers = 8")
        >>> recipe.global_batch, recipe.reasons["batch"]
        (1024, 'noise scale 980')
        """
        values, reasons = _read_fields(text)
        return (base or cls()).overlay(**values, reasons=reasons)

    @classmethod
    def load(cls, file: Path, *, base: Recipe | None = None) -> Recipe:
        """Read a recipe file."""
        return RecipeFile.read(file).recipe(base=base)

    def save(self, file: Path) -> None:
        """Write a recipe file atomically."""
        write_atomically(file, self.to_toml().encode())


NO_TARGET: dict[str, Any] = {"target_accuracy": None, "target": None, "target_metric": None}
"""the fields with which a training makes all its epochs"""


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """The text of a recipe file, which is read once, since it may be a pipe or change while workers start."""

    name: str
    """the path as the user gave it, for messages"""
    text: str

    @classmethod
    def read(cls, file: Path) -> RecipeFile:
        """Read a file."""
        try:
            return cls(name=str(file), text=read_text(file, encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{file}: expected a recipe file, got: {read_failure(error)}; check the path") from None

    def recipe(self, *, base: Recipe | None = None) -> Recipe:
        """Return the recipe; a missing key keeps the value of ``base``, or else the default."""
        with self._named():
            return Recipe.from_toml(self.text, base=base)

    def fields(self) -> dict[str, Any]:
        """Return the fields that the text sets, without checking how they fit together."""
        with self._named():
            return _read_fields(self.text)[0]

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Put the name of the file before the message of an error."""
        try:
            yield
        except RecipeError as error:
            raise RecipeError(f"{self.name}: {error}") from None


def field_names() -> list[str]:
    """List the fields that a recipe file may have."""
    return [item.name for item in fields(Recipe) if item.name != "reasons"]


def _read_fields(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a TOML text, and their comments as reasons."""
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
    """Check the names of fields and convert each value to the declared type of its field."""
    _check_names(values)
    hints = get_type_hints(Recipe)
    return {name: take_value(name, value, hints[name]) for name, value in values.items()}


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in field_names() and name != "reasons":
            meant = _OTHER_NAMES.get(name, name)
            do = suggest(meant, field_names(), "see `rueda recipe fields`")
            raise RecipeError("recipe", expected="a known field", got=name, do=do)


def describe_fields() -> list[tuple[str, str, str]]:
    """Return the name, default and meaning of each field; the meaning is the docstring beside the field."""
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
