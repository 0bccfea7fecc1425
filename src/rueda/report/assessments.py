"""The readers of ``assessment.json`` and ``gradebook.json``: what a submission, or a class, has got, and why."""

from __future__ import annotations

import math

from rueda.records.assessment import Assessment, Gradebook, GradebookRow
from rueda.report.model import Cell, Section, Table, field_as
from rueda.terminal.numbers import percent


def to_section(found: Assessment) -> Section:
    """Return the section about a submission."""
    asked = f"{percent(found.target_accuracy)} in {found.patience} consecutive epochs within {found.within:g} s"
    section = Section(title=f"{found.learner}: {found.script} on {found.workers} workers", task=found.task)
    section.told.append(f"{found.learner} has {found.summary}; asked for: {asked}, on {found.task}.")
    held = "; ".join(found.isolation) or "nothing"
    section.told.append(f"What kept the script apart from the grader: {held}.")
    section.told += [f"Note: {one}." for one in found.notes]
    section.tables.append(Table.of(f"Criteria: {found.summary}", found.criteria, _CRITERIA))
    if found.epochs:
        note = "Seconds count from the first training step; accuracies are the grader's own."
        section.tables.append(Table.of("Saved epochs", found.epochs, _EPOCHS, note))
    return section


def class_to_section(found: Gradebook) -> Section:
    """Return the section about a class."""
    passed = sum(one.passed for one in found.rows)
    told = f"{passed} of {len(found.rows)} submissions have passed: {found.task}, {found.workers} workers"
    return Section(
        title="Submissions of a class", task=found.task,
        told=[f"{told}, {percent(found.target_accuracy)} within {found.within:g} s."],
        tables=[Table.of("Results", found.rows, _ROWS)],
    )  # fmt: skip


def _points(one: object) -> Cell:
    points, most = getattr(one, "points", 0.0), getattr(one, "most", 0.0)
    return f"{points:g} of {most:g}" if most else "condition"


def _percent(value: float) -> str:
    return "" if math.isnan(value) else percent(value)


def _number(name: str, one: GradebookRow) -> Cell:
    value = getattr(one, name)
    if math.isnan(value):
        return (None, "")
    return (value, _percent(value) if name == "accuracy" else f"{value:.1f}")


_CRITERIA = {
    "criterion": lambda one: one.name,
    "what holds if it is met": lambda one: one.question,
    "result": lambda one: one.status,
    "points": _points,
    "reason": lambda one: one.reason,
}
_EPOCHS = {
    "epoch": field_as("epoch", str),
    "accuracy": field_as("accuracy", _percent),
    "on public validation": field_as("public", _percent),
    "seconds": field_as("seconds", "{:.1f}".format),
    "examples": field_as("examples", "{:,}".format),
    "note": lambda one: one.note,
}
_ROWS = {
    "learner": lambda one: one.learner,
    "result": lambda one: "passed" if one.passed else "failed",
    "points": field_as("points", "{:g}".format),
    "accuracy": lambda one: _number("accuracy", one),
    "seconds": lambda one: _number("seconds", one),
    "reason": lambda one: one.reason,
}
