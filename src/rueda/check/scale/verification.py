"""Verification: the first shared gradients are compared with those of the same script on one worker.

Rank 0 starts the script once more, as one worker, whose output is dropped and whose files go to a private folder. Both
go forward step by step: before each optimizer step the reference waits for a command. At the first shared steps rank 0
asks for the gradients and compares them with its own, which are the average over all workers; then the reference ends.

A loss that is a sum, a mean weighted by class or by token, a loss over pairs of examples (contrastive), a permutation
of the batch (mixup): whatever makes the gradient of the batch something else than the mean over its shares is seen
here, and the script is refused instead of trained wrongly.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rueda.check.scale.notes import Notes
from rueda.check.scale.options import VARIABLE, ScaleOptions
from rueda.world import World
from rueda.world.stall.watcher import declared_work

_MODULE = "rueda.check.scale"


class Verification:
    """Compares the first shared gradients; the base class compares nothing."""

    def at_step(self, optimizer: Any, *, compare: bool, losses: Sequence[Tensor] = (), inexact: str = "") -> None:
        """Compare the gradients that an optimizer is about to use, and its rates.

        Args:
            optimizer: the optimizer.
            compare: whether they are compared; else the reference makes the step, too.
            losses: the losses of the last backward pass.
            inexact: why they may differ from the serial script's (batch norm by worker, half precision, draws that
                cannot be shared out), so that only their size is compared; nothing if they must not.
        """

    def close(self) -> None:
        """End the reference."""


class Reference(Verification):
    """The script on one worker: it waits before each step, and sends its gradients when it is told to.

    Args:
        options: with the file descriptors.
    """

    def __init__(self, options: ScaleOptions) -> None:
        self._commands = os.fdopen(options.commands, "rb", buffering=0)
        self._answers = os.fdopen(options.answers, "wb", buffering=0)

    def at_step(self, optimizer: Any, *, compare: bool, losses: Sequence[Tensor] = (), inexact: str = "") -> None:
        """Wait for a command; send the gradients, or end at the end of the commands."""
        command = self._commands.read(1)
        if not command:
            os._exit(0)
        if command == b"s":
            stream = io.BytesIO()
            gradients = [one.cpu() for one in gradients_of(optimizer)]
            values = [float(one) for one in losses]
            torch.save({"gradients": gradients, "rates": rates_of(optimizer), "losses": values}, stream)
            data = stream.getvalue()
            self._answers.write(len(data).to_bytes(8, "little"))
            view = memoryview(data)
            while view:
                view = view[self._answers.write(view) :]


class ComparedWithReference(Verification):
    """Rank 0's side: starts the reference and compares.

    Args:
        command: the script and its arguments.
        options: how the script is scaled.
        world: the workers.
        notes: where the result is told.
    """

    def __init__(self, command: Sequence[str], options: ScaleOptions, world: World, notes: Notes) -> None:
        self._options, self._world, self._notes = options, world, notes
        self._is_open, self._num_compared = True, 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        commands_in, self._commands = os.pipe()
        self._answers, answers_out = os.pipe()
        told = replace(options, commands=commands_in, answers=answers_out)
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *command],
            env={**os.environ, VARIABLE: told.as_text()},
            pass_fds=(commands_in, answers_out),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
        )  # fmt: skip
        os.close(commands_in)
        os.close(answers_out)

    def at_step(self, optimizer: Any, *, compare: bool, losses: Sequence[Tensor] = (), inexact: str = "") -> None:
        """Let the reference make the same step; compare its gradients and rates if asked to."""
        if not self._is_open:
            return
        try:
            os.write(self._commands, b"s" if compare else b"g")
        except BrokenPipeError:
            self._gave_up()
            return
        if not compare:
            return
        with declared_work("verification"):
            expected = self._receive()
        if expected is None:
            self._gave_up()
            return
        self._compare_rates(rates_of(optimizer), expected["rates"])
        same = same_losses([float(one) for one in losses], expected["losses"])
        self._compare(gradients_of(optimizer), expected["gradients"], inexact, same=same)

    def _compare_rates(self, found: Sequence[tuple[str, float]], expected: Sequence[tuple[str, float]]) -> None:
        for (name, ours), (_, theirs) in zip(found, expected, strict=False):
            if abs(ours - theirs) > 1e-4 * abs(theirs):
                self._notes.refuse(
                    f"the optimizer's {name} is {ours:.6g}, and {theirs:.6g} in the script on one worker: the script "
                    "computes it from the examples that it has seen (len(x), a running sum), of which each worker sees "
                    "its share; compute it from the loader's batch_size, or from the number of steps"
                )

    def _receive(self) -> Any:
        stream = io.BytesIO()
        length = self._read(8)
        if length is None:
            return None
        data = self._read(int.from_bytes(length, "little"))
        if data is None:
            return None
        stream.write(data)
        stream.seek(0)
        return torch.load(stream, weights_only=True)

    def _read(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = os.read(self._answers, min(count - len(parts), 1 << 20))
            if not part:
                return None
            parts += part
        return bytes(parts)

    def _compare(self, found: Sequence[Tensor], expected: Sequence[Tensor], inexact: str, *, same: bool) -> None:
        if [one.shape for one in found] != [one.shape for one in expected]:
            self._notes.refuse(
                "the step's gradients have other shapes than those of the script on one worker: the script does "
                "something else there; make it depend on the data alone"
            )
        with torch.no_grad():
            ours = torch.cat([one.detach().reshape(-1).double().cpu() for one in found])
            theirs = torch.cat([one.reshape(-1).double() for one in expected])
        self._num_compared += 1
        tolerance = tolerance_of(found, is_first=self._num_compared == 1, same_losses=same)
        verdict = judge(
            ours, theirs, self._world.size, self._options.loss, inexact,
            tolerance=tolerance, number=self._num_compared,
        )  # fmt: skip
        if verdict.refusal:
            self._notes.refuse(verdict.refusal)
        if self._num_compared == 1 or verdict.words.startswith("not"):
            self._notes.say(verdict.words)

    def _gave_up(self) -> None:
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()
        self._notes.say(
            "not verified: the script on one worker, to compare with, ended before its step"
            + (f" ({last[-1][:200]})" if last else "")
        )
        self.close()

    def close(self) -> None:
        """End the reference."""
        self._is_open = False
        for descriptor in (self._commands, self._answers):
            if descriptor >= 0:
                os.close(descriptor)
        self._commands = self._answers = -1
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class Verdict:
    """The result of a comparison: a line for the user, or the reason why the script is refused."""

    def __init__(self, words: str = "", refusal: str = "") -> None:
        self.words, self.refusal = words, refusal


def judge(
    ours: Tensor, theirs: Tensor, size: int, loss: str, inexact: str, *, tolerance: float = 1e-5, number: int = 1
) -> Verdict:
    """Compare a gradient with that of the serial script.

    Args:
        ours: the average over all workers, flat.
        theirs: that of the script on one worker.
        size: the number of workers.
        loss: what the loss is taken for: ``mean`` or ``sum``.
        inexact: why they may differ; then only their size along the serial gradient is compared.
        tolerance: the largest relative difference that rounding gives.
        number: the number of this comparison, from 1.

    >>> gradient = torch.tensor([1.0, -2.0, 3.0])
    >>> judge(gradient, gradient, 2, "mean", "").words
    'verified: the gradient is that of the script on one worker (relative difference 0)'
    >>> judge(gradient / 2, gradient, 2, "mean", "").refusal
    "the first shared gradient is 0.5 times the serial script's: its loss is a sum over the batch; give --loss sum"
    """
    norm = float(theirs.norm())
    if norm == 0.0 or not bool(torch.isfinite(theirs).all()):
        return Verdict(words="not verified: the gradient of the script on one worker is 0 or not finite")
    difference = float((ours - theirs).norm()) / norm
    scale = float(ours @ theirs) / norm**2
    along = float((ours - scale * theirs).norm()) / norm
    which = "first" if number == 1 else f"{number}th" if number > 3 else ("second", "third")[number - 2]
    if difference <= tolerance:
        return Verdict(
            words=f"verified: the gradient is that of the script on one worker (relative difference {difference:.1g})"
        )
    wrong = 1 / size if loss == "mean" else size
    if abs(scale / wrong - 1) < 0.1 * (1 if inexact else 0.5) and along <= max(tolerance, 0.5 * wrong * bool(inexact)):
        kind, other = ("sum", "sum") if loss == "mean" else ("mean", "mean")
        return Verdict(
            refusal=f"the {which} shared gradient is {scale:.3g} times the serial script's: its loss is a {kind} over "
            f"the batch; give --loss {other}"
        )
    if inexact and 0.6 < scale < 1.6:
        return Verdict(
            words=f"verified in size only ({scale:.2f} of the gradient of the script on one worker): {inexact}"
        )
    return Verdict(
        refusal=f"the {which} shared gradient that was compared differs from the serial script's (relative difference "
        f"{difference:.2g}, at most {tolerance:.0e} is rounding): {_causes(number)}; --verify 0 runs it all the same"
    )


def _causes(number: int) -> str:
    loss = (
        "the loss of a batch is not the mean of its examples' losses (contrastive, a ratio of sums, a permutation of "
        "the batch), noise is drawn for a fixed number of examples, or the data set draws from a generator of its own "
        "(then give --load whole)"
    )
    return loss if number == 1 else f"{loss}; or the script keeps something that it computed from an earlier share"


def same_losses(found: Sequence[float], expected: Sequence[float]) -> bool:
    """Return whether losses are equal up to rounding; False if they are not known.

    >>> same_losses([1.2000001], [1.2]), same_losses([1.20001], [1.2]), same_losses([], [])
    (True, False, False)
    """
    pairs = list(zip(found, expected, strict=False))
    return bool(pairs) and all(abs(ours - theirs) <= 2e-6 * max(1.0, abs(theirs)) for ours, theirs in pairs)


def tolerance_of(gradients: Sequence[Tensor], *, is_first: bool, same_losses: bool = False) -> float:
    """Return the largest relative difference of gradients that is taken for rounding.

    At the first comparison all parameters are still those of the serial script, bit by bit; an optimizer such as Adam
    may turn the rounding of a gradient of almost 0 into an entire step. A GPU may multiply with 10 bits (TF32). The
    terms of a gradient may cancel each other almost, those of a loss seldom: where the losses are equal, and linear in
    the sums over the batch, a larger difference of the gradients is rounding.

    >>> tolerance_of([torch.zeros(2)], is_first=True), tolerance_of([torch.zeros(2)], is_first=False)
    (1e-05, 0.001)
    """
    exact = all(one.device.type == "cpu" and one.dtype in (torch.float32, torch.float64) for one in gradients)
    return 1e-5 if exact and is_first and not same_losses else 1e-3


def rates_of(optimizer: Any) -> list[tuple[str, float]]:
    """Return the learning rates of an optimizer, and all other numbers of its parameter groups."""
    return [
        (name, float(value))
        for group in optimizer.param_groups
        for name, value in group.items()
        if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)
    ]


def gradients_of(optimizer: Any) -> list[Tensor]:
    """Return the gradients of an optimizer's parameters, zeros where there are none."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return [torch.zeros_like(one) if one.grad is None else one.grad.detach() for one in parameters]
