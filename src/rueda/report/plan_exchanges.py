"""The part of a plan that is about exchanging parameters every H updates instead of gradients at each."""

from __future__ import annotations

from collections.abc import Callable

from rueda.records.plan import ExchangePrediction, Plan
from rueda.report.model import Cell, Table, field_as
from rueda.terminal.numbers import NONE, amount, bits_per_second, count, digits, milliseconds, things


def by_sync_every(plan: Plan) -> Table:
    """Return the table of an update's time against ``sync_every``; the accuracy is not part of it."""
    rows = plan.exchanges
    columns: dict[str, Callable[[ExchangePrediction], Cell]] = {
        "sync_every": field_as("sync_every", count),
        "one exchange": field_as("exchange_seconds", milliseconds),
        "lengthens an update by": field_as("exposed_seconds", milliseconds),
        "update": field_as("step_seconds", milliseconds),
        "of one with gradients": field_as("share", lambda share: digits(share, 2)),
        "sent a worker": lambda row: (row.bytes_per_update, amount(row.bytes_per_update)),
    }
    if any(row.worth_below is not None for row in rows):
        columns["saves 5 % below"] = lambda row: (
            NONE if row.worth_below is None else (row.worth_below, bits_per_second(row.worth_below))
        )
    delay = max(row.delay for row in rows)
    hidden = f" Exchanges overlap with {things(delay, 'update')}." if delay else " Exchanges overlap with nothing."
    note = f"Predicted; the accuracy is not: rehearse it.{hidden} Sent: on average in an update."
    title = f"Exchanging parameters every H updates, {things(rows[0].workers, 'worker')}"
    return Table.of(title, rows, columns, note)
