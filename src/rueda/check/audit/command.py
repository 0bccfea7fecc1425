"""``rueda check`` from the launch to the table."""

from __future__ import annotations

import json
import shlex
import sys

from rueda.check.audit.judge.judging import judge
from rueda.check.audit.judge.verdict import FAILED
from rueda.check.audit.launching import observed
from rueda.check.audit.report import as_json as plain
from rueda.check.audit.report import findings, table
from rueda.terminal.table import print_table
from rueda.world.launch import LaunchPlan, OutputOptions


def check_script(plan: LaunchPlan, *, updates: int, as_json: bool = False, output: OutputOptions | None = None) -> int:
    """Check a script and print the result; return the exit status: 1 if a check has failed, or the script's own.

    Args:
        plan: the script, its arguments and the workers.
        updates: optimizer steps after which the script is ended; 0: it runs to its own end.
        as_json: print the result as JSON instead of a table.
        output: how the workers' output is shown; with JSON it goes to standard error.
    """
    status, journals = observed(plan, updates=updates, output=output or OutputOptions(to_stderr=as_json))
    verdicts = judge(journals)
    name = shlex.join(plan.program)
    if as_json:
        print(json.dumps(plain(verdicts, script=name, workers=plan.workers, status=status), indent=2))
    else:
        for paragraph in findings(verdicts):
            print(paragraph, end="\n\n")
        print_table(table(verdicts, title=f"rueda check: {name} on {plan.workers} workers"))
    failed = any(one.status == FAILED for one in verdicts)
    if status:
        print(
            f"rueda: the script has ended with status {status}; the checks cover what was seen before", file=sys.stderr
        )
    return 1 if failed else status
