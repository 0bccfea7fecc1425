"""A figure that moves: one declaration, which marimo shows live and a static page shows from precomputed values.

>>> from rueda.labs.showing import Text
>>> moving = Exploration("batches", lambda batch: Text(f"{100 // batch} updates an epoch"),
...     batch=Control("batch size", (1, 10, 100)))
>>> moving.start, len(moving.combinations())
({'batch': 1}, 3)
>>> moving.show({"batch": 10}).drawn
Text(text='10 updates an epoch')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from rueda.errors import LabError
from rueda.labs import showing
from rueda.labs.showing import HERE, Drawn, Source
from rueda.report.escape import to_html
from rueda.report.inlined import packed_text

MOST_COMBINATIONS = 400
"""the most figures that a static page holds of one exploration"""

MILLISECONDS = 500
"""between two figures that are played"""

Value = float | int | str
Draw = Callable[..., Drawn | Iterable[Drawn]]


@dataclass(frozen=True)
class Control:
    """A slider over some values, or, if they are texts, a list to choose from."""

    label: str
    values: Sequence[Value]
    start: Value | None = None
    """the initial value; None: the first"""
    export: Sequence[Value] | None = None
    """the values of a static page, if all would be too many"""
    write: Callable[[Any], str] = field(default=lambda value: f"{value:,}" if isinstance(value, int) else str(value))
    """how a value is written in a static page"""

    @property
    def first(self) -> Value:
        """The initial value."""
        return self.values[0] if self.start is None else self.start

    @property
    def exported(self) -> Sequence[Value]:
        """The values of a static page."""
        return self.export or self.values


class Exploration:
    """A figure, table or text with controls.

    Args:
        key: an identifier of lower-case letters, digits and hyphens, unique in its lab.
        draw: a function of the controls' values that computes, through the library, what is shown.
        source: where the numbers come from.
        height: the height of the frame, in pixels, until it is drawn.
        controls: the controls by the names of ``draw``'s arguments; without any, the figure does not move.
    """

    def __init__(self, key: str, draw: Draw, *, source: Source = HERE, height: int = 480, **controls: Control) -> None:
        if not re.fullmatch("[a-z][a-z0-9-]*", key):
            raise LabError("key of an exploration", expected="letters, digits and hyphens", got=key, do="rename it")
        self.key, self.draw, self.source, self.height, self._controls = key, draw, source, height, controls
        count = len(self.combinations())
        if count > MOST_COMBINATIONS:
            raise LabError(
                f"controls of {key}", expected=f"at most {MOST_COMBINATIONS} combinations", got=count,
                do="give `export=` with fewer values",
            )  # fmt: skip

    @property
    def start(self) -> dict[str, Value]:
        """The initial values."""
        return {name: control.first for name, control in self._controls.items()}

    @property
    def declared(self) -> Mapping[str, Control]:
        """The controls by name."""
        return self._controls

    def combinations(self) -> list[dict[str, Value]]:
        """Return the values of all figures that a static page holds, the last control changing fastest."""
        ranges = [control.exported for control in self._controls.values()]
        return [dict(zip(self._controls, values, strict=True)) for values in product(*ranges)]

    def controls(self) -> Any:
        """Return marimo's elements for the controls; their ``value`` is what :meth:`show` takes."""
        import marimo as mo

        return mo.ui.dictionary({name: _element(control) for name, control in self._controls.items()})

    def stage(self, controls: Any) -> Any:
        """Return what the cell that makes the controls shows: the controls, and below them the figure's frame."""
        import marimo as mo

        row = mo.hstack(list(controls.elements.values()), wrap=True, justify="start", gap=1.5)
        return mo.vstack([row, mo.Html(showing.stage(self.key, self.source, self.height))])

    def show(self, values: Mapping[str, Value]) -> Shown:
        """Compute the figure for some values, and hand it to the frame."""
        return Shown(exploration=self, drawn=self.draw(**values))

    def play(self) -> Played:
        """Compute all figures beforehand and show them with sliders of their own and a button that moves the first."""
        return Played(exploration=self, drawn=())


def figure(key: str, drawn: Drawn | Sequence[Drawn], *, source: Source = HERE, height: int = 480) -> Shown:
    """Return a figure that does not move."""
    return Shown(exploration=Exploration(key, lambda: drawn, source=source, height=height), drawn=drawn, alone=True)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What an exploration shows for one choice of values."""

    exploration: Exploration
    drawn: Drawn | Iterable[Drawn]
    alone: bool = False
    """whether the frame is shown here, too: a figure without controls"""

    def _mime_(self) -> tuple[str, str]:
        one = self.exploration
        over = showing.handing_over(one.key, showing.parts_of(self.drawn, one.key))
        return "text/html", (showing.stage(one.key, one.source, one.height) if self.alone else "") + over

    def static(self, *, live: bool = False) -> str:
        """Return the sliders and an empty place, which the script of a static page fills."""
        one = self.exploration
        controls = "".join(_input(control, isinstance(self, Played)) for control in one.declared.values())
        row = f'<div class="controls">{controls}</div>' if controls else ""
        source = showing.source_line(one.source.live if live else one.source.static)
        return f'<div class="stage" data-section="{one.key}">{row}<div class="parts"></div>{source}</div>'

    def frames(self) -> list[list[dict[str, Any]]]:
        """Compute the figures of all combinations, for a static page."""
        one = self.exploration
        return [showing.parts_of(one.draw(**values), one.key) for values in one.combinations()]


@dataclass(frozen=True, kw_only=True)
class Played(Shown):
    """Figures that move by themselves: all are computed beforehand, and the page plays them."""

    def _mime_(self) -> tuple[str, str]:
        one = self.exploration
        data = packed_text(showing.data_text({one.key: self.frames()}))
        body = f'{self.static(live=True)}<script type="text/plain" id="frames">{data}</script>'
        page = showing.document(body, showing.scripts("parts.js", "framed.js", "static.js"))
        return "text/html", showing.frame(page, title=one.key, height=one.height)


def _element(control: Control) -> Any:
    import marimo as mo

    if all(isinstance(value, str) for value in control.values):
        return mo.ui.dropdown(options=list(control.values), value=str(control.first), label=control.label)
    steps: Any = list(control.values)
    start: Any = control.first
    return mo.ui.slider(steps=steps, value=start, label=control.label, show_value=True)


def _input(control: Control, plays: bool) -> str:
    label, values = showing.inline(control.label), control.exported
    texts = [value if isinstance(value, str) else control.write(value) for value in values]
    at = list(values).index(control.first) if control.first in values else 0
    if all(isinstance(value, str) for value in control.values):
        options = "".join(
            f"<option{' selected' * (index == at)}>{to_html(text)}</option>" for index, text in enumerate(texts)
        )
        return f"<label>{label} <select>{options}</select></label>"
    written = to_html("|".join(texts))
    button = f'<button type="button" aria-label="play" data-milliseconds="{MILLISECONDS}">▶</button>' if plays else ""
    return (
        f'<label>{label} {button}<input type="range" min="0" max="{len(texts) - 1}" step="1" value="{at}" '
        f'data-texts="{written}"><output>{to_html(texts[at])}</output></label>'
    )
