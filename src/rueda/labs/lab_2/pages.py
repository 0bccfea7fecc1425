"""What the screens of lab 2 about scripts show: the change of a step, what the ranks print, what the check finds."""

from __future__ import annotations

from rueda.check.convert import convert
from rueda.check.convert.difference import unified_diff
from rueda.labs.explore import Control
from rueda.labs.lab_2 import scripts
from rueda.labs.lab_2.audits import Audit, audit
from rueda.labs.showing import Code, Drawn, Source, Text
from rueda.records.script_check import ADVICE
from rueda.report.model import Table
from rueda.terminal.numbers import things

RUN = Source(
    live="Run here, now, on two processes under rueda check, unless the text says that the run is stored.",
    static="From stored runs of this project on two processes; open the lab to run them on your machine.",
)
SERIAL = "serial script"


LIVE, STORED = "here, now", "stored"


def run_control(*, live: bool) -> Control:
    """Return the control that decides whether a script runs here or its stored run is shown.

    A start costs seconds, for which a notebook does not answer; and a static page has only stored runs.

    Args:
        live: the initial choice.
    """
    return Control("run", (LIVE, STORED), start=LIVE if live else STORED, export=(STORED,))


def step_page(style: str, number: int, run: str = LIVE) -> list[Drawn]:
    """Return the page of a step: its change of the script, and the run of the script with this step and all before.

    Args:
        style: ``ddp``, ``horovod`` or ``keras``.
        number: 0 is the serial script.
        run: :data:`LIVE` or :data:`STORED`.
    """
    after, result = scripts.up_to(style, number), audit(style, scripts.ORDER[:number], live=run == LIVE)
    if number == 0:
        return [
            Text("**The serial script.** It knows nothing of other workers. Started on two processes, it runs twice."),
            Code(after, title=SERIAL),
            *run_page(result),
        ]
    step = scripts.STEPS[number - 1]
    return [
        Text(f"**Step {number}: {step.title}.** {step.why}"),
        Code(difference(scripts.up_to(style, number - 1), after), title="what changes"),
        *run_page(result),
        *([Code(after, title="the parallel script")] if number == len(scripts.STEPS) else []),
    ]


def without_page(style: str, name: str, run: str = LIVE) -> list[Drawn]:
    """Return the page of the parallel script without one of its steps."""
    step, steps = scripts.step(name), scripts.all_but(name)
    whole = scripts.script(style, (*scripts.ORDER, "aloud"))
    return [
        Text(f"**Without step {scripts.ORDER.index(name) + 1}, {step.title}.** {step.without}"),
        Code(difference(whole, scripts.script(style, steps)), title="what is missing"),
        *run_page(audit(style, steps, live=run == LIVE)),
    ]


def variant_page(style: str, *variants: str, run: str = LIVE) -> list[Drawn]:
    """Return the page of the parallel script with another way of the partition."""
    before, steps = scripts.script(style, scripts.ORDER), (*scripts.ORDER, *variants)
    return [
        Code(difference(before, scripts.script(style, steps)), title="instead of the sampler"),
        *run_page(audit(style, steps, live=run == LIVE)),
    ]


def run_page(result: Audit) -> list[Drawn]:
    """Return what the ranks printed, and what ``rueda check`` found."""
    where = f"in {result.seconds:.0f} seconds" if result.live else "in a **stored run**"
    begin = f"`rueda check -np {result.check.workers} train.py` ran it on two workers {where}."
    if result.check.script_status:
        begin += (
            f" The script **ended with an error**: `{result.error or f'exit status {result.check.script_status}'}`."
        )
    found: list[Drawn] = [Text(begin)]
    if any(result.epochs()):
        found += [_printed(result), Text(_verdict(result))]
    found += [
        Text(f"**{one.status}, {one.check}**: {one.what} (`{', '.join(one.where)}`). Cure: {one.cure}.")
        for one in result.found
    ]
    return found


def _verdict(result: Audit) -> str:
    mistakes = [one for one in result.found if one.status != ADVICE]
    if not mistakes:
        return f"The check finds **no mistake** ({result.check.summary})."
    return f"The check finds **{things(len(mistakes), 'mistake')}** ({result.check.summary}):"


def _printed(result: Audit) -> Table:
    """Return the table of what each rank printed after each epoch."""
    epochs = result.epochs()
    rows = []
    for number in range(max(map(len, epochs), default=0)):
        row: list[str] = [str(number)]
        for rank in epochs:
            row.append(f"{100 * rank[number][0]:.1f} % ({rank[number][1]:.4f})" if number < len(rank) else "–")
        rows.append(row)
    heads = ["epoch", *(f"rank {rank}" for rank in range(len(epochs)))]
    last = [rank[-1] for rank in epochs if rank]
    if len(last) < 2:
        note = "Rank 0 alone prints."
    elif len(set(last)) == 1:
        note = "Both ranks print the same: they have one model."
    else:
        note = "The ranks print different numbers: they have two models."
    note = f"Test accuracy, and in parentheses the norm of the weights. {note}"
    return Table(title="What the ranks print", heads=heads, rows=rows, note=note)  # type: ignore[arg-type]


def difference(before: str, after: str) -> str:
    """Return the changed lines of a script with one line around each, marked with + and -.

    >>> print(difference("a\\nb\\nc\\nd\\n", "a\\nb\\nc\\ne\\n"))
      c
    - d
    + e
    """
    lines = scripts.changes(before, after)
    near = {at + offset for at, (mark, _) in enumerate(lines) if mark != " " for offset in (-1, 0, 1)}
    shown: list[str] = []
    for at, (mark, text) in enumerate(lines):
        if at in near:
            if shown and at - 1 not in near:
                shown.append("  ...")
            shown.append(f"{mark} {text}".rstrip())
    return "\n".join(shown)


def conversion_page(style: str) -> list[Drawn]:
    """Return what ``rueda convert`` makes of the serial script, as a diff."""
    serial = scripts.up_to("ddp", 0).encode()
    made = convert(serial, to=style)
    words = "It is sure of every change." if not made.warnings else " ".join(made.warnings)
    return [
        Text(f"`rueda convert train.py --to {style}`. {words}"),
        Code(unified_diff(made.before, made.after, "train.py").decode(), title="the diff"),
    ]
