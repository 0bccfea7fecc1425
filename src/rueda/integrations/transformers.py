"""The gradient noise scale in the Trainer of Hugging Face: :class:`NoiseScaleCallback`.

::

    optimizer = rueda.optim.LAMB(rueda.optim.parameter_groups(model, weight_decay=0.01), lr=rates(0))
    scheduler = torch_scheduler(optimizer, rates)  # of rueda.optim.adapters; the Trainer steps it once an update
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, scheduler),
                      callbacks=[NoiseScaleCallback(every=10)])

Ghost batch norm is a line before the Trainer is made: ``rueda.nn.apply_ghost_batch_norm(model, ghost_batch=32)``.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from rueda.data.nest import num_examples
from rueda.errors import MissingExtra, RecipeError
from rueda.integrations.noise_meter import NoiseMeter

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import ExportableState
except ImportError:
    raise MissingExtra("transformers", "transformers") from None


class NoiseScaleCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Measures the gradient noise scale, in examples, and adds it to the Trainer's logs.

    It compares the gradients of workers (DistributedDataParallel), or of micro-batches on one worker:
    ``gradient_accumulation_steps`` must be 2 or more there. ``noise_scale``, ``noise_scale_low`` and
    ``noise_scale_high`` are in ``trainer.state.log_history`` and in what later callbacks log. The Trainer puts the
    trackers of ``report_to`` before the callbacks of a user: for these write
    ``trainer.callback_handler.callbacks.insert(0, NoiseScaleCallback())`` instead of ``callbacks=[...]``.

    The averages are in the Trainer's checkpoints; ``restore_callback_states_from_checkpoint=True`` restores them.

    Args:
        every: updates between measurements.
        memory: length of the moving average, in measurements.
    """

    def __init__(self, every: int = 1, memory: int = 200) -> None:
        self.every, self.memory = every, memory
        self.averages: dict[str, Any] | None = None
        """the averages of a checkpoint, with which the measurement continues"""
        self.meter: NoiseMeter | None = None
        """the meter of the current training; ``meter.current`` is the last estimate"""
        self._handles: list[Any] = []
        self._step = self._micro_batch = 0

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds, as numbers."""
        averages = self.averages if self.meter is None else self.meter.state_dict()
        return {"args": {"every": self.every, "memory": self.memory}, "attributes": {"averages": averages}}

    # The Trainer's events, in the order in which it calls them.

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach the meter to the model, or to the DistributedDataParallel around it as soon as that is called."""
        model: nn.Module = kwargs["model"]
        self.meter = None
        self._handles = [model.register_forward_pre_hook(self._see_batch, with_kwargs=True)]
        if args.world_size > 1:
            self._handles.append(register_module_forward_pre_hook(lambda module, _: self._find_wrapper(module, model)))
        elif args.gradient_accumulation_steps < 2:
            raise RecipeError(
                "noise scale", expected="two workers or micro-batches, whose gradients are compared", got="one",
                do="set gradient_accumulation_steps=2 and half the batch, which is the same update",
            )  # fmt: skip
        else:
            self._attach(model)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin an update."""
        self._step = state.global_step
        if self.meter is not None:
            self.meter.begin(state.global_step)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End a micro-batch that is not the last one of its update."""
        self._end_part()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the update; the Trainer has clipped the gradients by now, but the meter has read them before."""
        meter = self._end_part()
        scaler = getattr(kwargs.get("optimizer"), "scaler", None)
        meter.end(state.global_step, loss_scale=1.0 if scaler is None else float(scaler.get_scale()))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the noise scale to the log of a training step."""
        logs = kwargs.get("logs") or {}
        if self.meter is not None and "loss" in logs:
            logs.update(self.meter.figures())
            if state.log_history and state.log_history[-1].get("step") == state.global_step:
                state.log_history[-1].update(self.meter.figures())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        if self.meter is not None:
            self.meter.close()

    def _attach(self, model: nn.Module) -> None:
        self.meter = NoiseMeter(model, every=self.every, memory=self.memory)
        if self.averages is not None:
            self.meter.load_state_dict(self.averages)

    def _find_wrapper(self, module: nn.Module, model: nn.Module) -> None:
        if isinstance(module, DistributedDataParallel) and module.module is model:
            self._handles.pop().remove()
            self._attach(module)
            assert self.meter is not None
            self.meter.begin(self._step)  # this update began before the wrapper was found

    def _see_batch(self, model: nn.Module, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model.training:
            self._micro_batch = num_examples(kwargs)

    def _end_part(self) -> NoiseMeter:
        if self.meter is None:
            expected, do = "DistributedDataParallel around the model", "measure without FSDP and DeepSpeed"
            raise RecipeError("noise scale", expected=expected, got="another wrapper", do=do)
        self.meter.part(self._micro_batch)
        return self.meter
