"""Write a profile as a table and a few lines of text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rueda.records.profile import Communication, NoiseScale, Profile, StepTime, StepWork, Together
from rueda.terminal.numbers import amount, milliseconds, operations, things

if TYPE_CHECKING:
    from rueda.terminal.table import TextTable

UNSTEADY = 0.15
"""largest spread of step times (half the interquartile range, as a fraction) of an undisturbed machine"""
WORKING = 0.8
"""smallest fraction of a step in which the processor worked on it, on an undisturbed machine"""


def table_of(profile: Profile) -> TextTable:
    """Return a table of step times at each local batch, for one worker alone and for several together."""
    from rueda.terminal.table import TextTable

    headings = ["batch", f"{profile.unit}/s", "ms", "±", "data", "forward", "backward", "update", "memory"]
    headings += [f"with {pair.workers}\nworkers" for pair in profile.together]
    rows = [[*_row(step), *(_joined(pair, step.batch) for pair in profile.together)] for step in profile.steps]
    return TextTable(f"{profile.task} on {profile.device}", headings, rows, optional=("±", "memory"))


def lines_of(profile: Profile) -> list[str]:
    """Return the rest as text: memory, communication, overlap, noise scale."""
    lines = []
    if profile.largest_batch is not None:
        lines.append(f"largest batch that fits: about {profile.largest_batch:,}")
    if profile.work is not None:
        lines.append(_work_line(profile.work, profile.unit))
    lines += [_link_line(link, profile) for link in profile.communication]
    lines += [_together_line(pair) for pair in profile.together]
    lines += [_noise_line(noise) for noise in profile.noise if noise.group is None]
    if (reason := disturbed(profile.steps)) is not None:
        lines.append(f"{reason}: other programs keep this machine busy; measure again when it is idle")
    return lines


def disturbed(steps: Sequence[StepTime]) -> str | None:
    """Return in words a sign that other programs used the machine during the measurement; None if there is none.

    A step of one worker waits only for its data, so on a CPU the processor should work on it all the time.
    """
    spread = statistics.median(step.relative_spread for step in steps)
    if spread > UNSTEADY:
        return f"step times spread by {100 * spread:.0f} %"
    worked = [step.processor / (step.seconds - step.data) for step in steps if step.processor is not None]
    if worked and statistics.median(worked) < WORKING:
        return f"the processor worked on the steps only {100 * statistics.median(worked):.0f} % of the time"
    return None


def _row(step: StepTime) -> list[str]:
    whole = step.data + step.forward + step.backward + step.optimizer
    shares = [
        f"{100 * part / whole:.0f} %" if whole else ""
        for part in (step.data, step.forward, step.backward, step.optimizer)
    ]
    memory = "" if step.peak_memory_bytes is None else amount(step.peak_memory_bytes)
    return [
        f"{step.batch:,}", f"{step.images_per_second:,.0f}", f"{1e3 * step.seconds:,.2f}",
        f"{100 * step.relative_spread:.0f} %", *shares, memory,
    ]  # fmt: skip


def _joined(pair: Together, batch: int) -> str:
    found = [step for step in pair.joined if step.batch == batch]
    return f"{pair.workers * found[0].images_per_second:,.0f}" if found else ""


def _work_line(work: StepWork, unit: str) -> str:
    return (
        f"counted: {operations(work.flops)} and {amount(work.saved_bytes)} of activations for each of the "
        f"{unit}; {amount(work.update_bytes)} of parameters, gradients and optimizer state"
    )


def _link_line(link: Communication, profile: Profile) -> str:
    exchange = link.seconds(profile.all_reduce_bytes)
    return (
        f"all-reduce among {link.workers} workers ({link.backend}): {milliseconds(link.latency)} + "
        f"bytes / {amount(link.bandwidth)}/s, fitted to {100 * link.residual:.0f} %; "
        f"{amount(profile.all_reduce_bytes)} of gradients: {milliseconds(exchange)}"
    )


def _together_line(pair: Together) -> str:
    overlap = "none of it overlapped" if pair.overlap < 1.1 else f"partly overlapped (gamma {pair.overlap:.1f})"
    return (
        f"{pair.workers} workers of {things(pair.threads, 'thread')} each: "
        f"the exchange takes {milliseconds(pair.exchange)} per step, {overlap}; fitted to {100 * pair.residual:.0f} %"
    )


def _noise_line(noise: NoiseScale) -> str:
    low, high = (_examples(value) for value in (noise.low, noise.high))
    return (
        f"gradient noise scale at step {noise.step:,}: {_examples(noise.value)} examples "
        f"({100 * noise.confidence:.0f} % interval {low} to {high}, over {noise.steps} steps)"
    )


def _examples(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "unknown" if math.isnan(value) else "∞"
