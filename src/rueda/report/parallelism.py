"""Sentences, tables and figures of the parallel forms: as a plan predicts them, and as a study measured them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rueda.records.parallelism import FormPrediction, MeasuredForm, Parallelism, Traffic
from rueda.records.plan import Plan
from rueda.report.figures.form_drawing import drawing
from rueda.report.figures.parallelism import bytes_plot, idle_plot, memory_plot
from rueda.report.model import Cell, Section, Table, field_as
from rueda.terminal.numbers import NONE, amount, count, milliseconds, percent, things, with_spread

_FITS = {True: "yes", False: "no", None: NONE}


def predicted_table(plan: Plan) -> Table:
    """Return the table of the forms that a plan predicts."""
    columns: dict[str, Callable[[FormPrediction], Cell]] = {
        "form": lambda form: form.form,
        "step": field_as("step_seconds", milliseconds),
        f"{plan.unit}/s": field_as("images_per_second", "{:,.0f}".format),
        "memory a worker": lambda form: (form.memory.total, amount(form.memory.total)),
        "of it activations": lambda form: (form.memory.activations, amount(form.memory.activations)),
        "sent a worker": lambda form: (form.sent, amount(form.sent)),
        "communication": field_as("communication_seconds", milliseconds),
        "bubble": field_as("bubble", lambda share: percent(share) if share else NONE),
        "fits": lambda form: _FITS[form.fits],
    }
    refused = "".join(f" {form}: {why}." for form, why in plan.refused_forms)
    workers = things(plan.forms[0].workers, "worker")
    note = (
        "Predicted. Sent, communication: of one worker in a step. Bubble: the share of the step in which a worker of a "
        f"pipeline waits.{refused}"
    )
    return Table.of(f"Parallel forms on {workers}, global batch {count(plan.forms_batch)}", plan.forms, columns, note)


def add_parallelism(section: Section, found: Parallelism) -> None:
    """Add the parallel forms to a section: sentences, tables, the drawing and the figures."""
    section.unit = found.unit
    section.told += sentences(found)
    section.tables += [forms_table(found), bytes_table(found)]
    if found.refused:
        cells: dict[str, Callable[[tuple[str, str]], Cell]] = {
            "form": lambda one: one[0],
            "why not": lambda one: one[1],
        }
        section.tables.append(Table.of("Forms that this task cannot have", found.refused, cells))
    if found.forms:
        section.plots += [*drawing(found), memory_plot(found), bytes_plot(found)]
        section.plots += [idle_plot(found)] if any(form.idle is not None for form in found.forms) else []


def sentences(found: Parallelism) -> list[str]:
    """Say what the comparison showed: the fastest form, the least memory, and whether the numbers are one worker's."""
    if not found.forms:
        return ["No parallel form was measured."]
    fastest = max(found.forms, key=lambda form: form.images_per_second)
    leanest = min(found.forms, key=lambda form: form.memory.total)
    told = [
        f"The same model and batch on {things(found.workers, 'worker')}: {fastest.form} is the fastest, "
        f"{fastest.images_per_second:,.0f} {found.unit}/s; {leanest.form} needs the least memory, "
        f"{amount(leanest.memory.total)} a worker."
    ]
    compared = [form.difference for form in found.forms if form.difference is not None]
    if compared:
        told.append(
            f"After {things(found.num_steps, 'step')} the parameters of every form differ from one worker's by at most "
            f"{max(compared):.1g} of the largest one ({found.precision})."
        )
    return told


def forms_table(found: Parallelism) -> Table:
    """Return the table of the measured forms."""

    def memory(form: MeasuredForm) -> Cell:
        return form.memory.total, f"{amount(form.memory.total)} ({amount(form.predicted.memory.total)})"

    def sent(form: MeasuredForm) -> Cell:
        return form.sent, f"{amount(form.sent)} ({amount(form.predicted.sent)})"

    def idle(form: MeasuredForm) -> Cell:
        if form.idle is None:
            return None, NONE
        both = [form.schedule_idle, form.predicted.bubble]
        return form.idle, f"{percent(form.idle)} ({', '.join(percent(one) for one in both if one is not None)})"

    def state(form: MeasuredForm) -> Cell:
        return form.memory.state, amount(form.memory.state)

    columns: dict[str, Callable[[MeasuredForm], Cell]] = {
        "form": lambda form: form.form,
        f"{found.unit}/s": lambda form: (form.images_per_second, with_spread(form.images_per_second, form.spread)),
        "parameters, gradients, optimizer": state,
        "memory a worker": memory,
        "highest memory": lambda form: (form.peak_bytes, NONE if form.peak_bytes is None else amount(form.peak_bytes)),
        "sent a worker": sent,
        "idle": idle,
        "difference from one worker": field_as("difference", lambda size: NONE if size is None else f"{size:.1g}"),
    }
    note = (
        "Measured, and in parentheses predicted. Highest memory: by how much that of a "
        "worker's process rises. Sent: bytes that a worker sends in a step. Idle: waiting for other "
        "stages; predicted by the measured times of the stages, and if all were equal. "
        f"Difference: of the parameters after {things(found.num_steps, 'step')}, relative to the largest one."
    )
    title = f"Parallel forms on {things(found.workers, 'worker')}, global batch {count(found.global_batch)}"
    return Table.of(title, found.forms, columns, note)


def bytes_table(found: Parallelism) -> Table:
    """Return the table of the bytes of each kind, measured and predicted."""
    rows = [
        (form.form, kind, _bytes(form.traffic, kind), _bytes(form.predicted.traffic, kind))
        for form in found.forms
        for kind in _kinds(form)
    ]
    columns: dict[str, Callable[[tuple[str, tuple[str, str], float, float]], Cell]] = {
        "form": lambda row: row[0],
        "what": lambda row: row[1][0],
        "collective": lambda row: row[1][1],
        "measured": lambda row: (row[2], count(round(row[2]))),
        "predicted": lambda row: (row[3], count(round(row[3]))),
    }
    note = "Bytes that a worker sends in a step, on average over the workers."
    return Table.of("What is exchanged", rows, columns, note)


def _kinds(form: MeasuredForm) -> list[tuple[str, str]]:
    every = [(one.carries, one.collective) for one in (*form.traffic, *form.predicted.traffic)]
    return list(dict.fromkeys(every))


def _bytes(traffic: Sequence[Traffic], kind: tuple[str, str]) -> float:
    return sum(one.num_bytes for one in traffic if (one.carries, one.collective) == kind)
