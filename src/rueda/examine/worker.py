"""One of the workers of ``rueda examine``: ``python -m rueda.examine.worker ORDER``, started by the launcher."""

from __future__ import annotations

import sys
from pathlib import Path


def main(file: Path) -> None:
    """Do this worker's part of an order."""
    from rueda.examine.work import Order, load, run_order
    from rueda.world import finish, open_world

    world = open_world()
    order = Order.from_json(file.read_text(encoding="utf-8"))
    run_order(order, load(order), world)
    finish()


if __name__ == "__main__":
    from rueda.errors import RuedaError

    try:
        main(Path(sys.argv[1]))
    except RuedaError as error:
        print(f"rueda: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
