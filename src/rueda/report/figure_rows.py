"""The HTML around figures: their captions, switches and the empty elements in which the script draws them."""

from __future__ import annotations

from rueda.report.escape import to_html
from rueda.report.plot import Plot, Switch


def figure_row(key: str, plots: list[Plot], shown: set[str]) -> str:
    """Return the HTML of figures side by side; a switch is placed above the first figure that has it."""
    figures = ""
    for plot in plots:
        switches = [switch for switch in plot.switches if switch.name not in shown and len(switch.views) > 1]
        shown |= {switch.name for switch in switches}
        note = f'<p class="remark">{to_html(plot.note)}</p>' if plot.note else ""
        figures += (
            f"<figure><figcaption><h3>{to_html(plot.title)}</h3>{note}{''.join(map(_switch, switches))}</figcaption>"
            f'<div class="plot" id="{key}-{to_html(plot.name)}" data-figure="{to_html(plot.name)}"></div></figure>'
        )
    return f'<div class="pair">{figures}</div>' if plots and plots[0].half else figures


def _switch(switch: Switch) -> str:
    buttons = "".join(
        f'<button type="button" data-view="{name}" aria-pressed="{"true" if index == 0 else "false"}">'
        f"{to_html(view.label)}</button>"
        for index, (name, view) in enumerate(switch.views.items())
    )
    return (
        f'<div class="switch" role="group" aria-label="{switch.label}" data-switch="{to_html(switch.name)}">'
        f"<span>{switch.label}</span>{buttons}</div>"
    )
