"""``rueda check`` from the launch to the table."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from rueda.check.audit.judge.judging import judge
from rueda.check.audit.launching import observed
from rueda.check.audit.report import findings, table, unobserved
from rueda.files.atomic import check_writable
from rueda.records.environment import environment
from rueda.records.script_check import ScriptCheck
from rueda.terminal.table import print_table
from rueda.world.launch import LaunchPlan, OutputOptions


def check_script(
    plan: LaunchPlan,
    *,
    updates: int,
    as_json: bool = False,
    file: Path | None = None,
    output: OutputOptions | None = None,
) -> int:
    """Check a script and print the result; return the exit status: 1 if a check has failed, or else the script's own.

    Args:
        plan: the script, its arguments and the workers.
        updates: optimizer steps after which the script is ended; 0: it runs to its own end.
        as_json: print the result as JSON instead of a table.
        file: write the result there, for ``rueda report``.
        output: how the workers' output is shown; with JSON it goes to standard error.
    """
    if file is not None:
        check_writable(file)  # an error now rather than after the training
    status, journals = observed(plan, updates=updates, output=output or OutputOptions(to_stderr=as_json))
    result = ScriptCheck(
        script=shlex.join(plan.program), workers=plan.workers, script_status=status, checks=tuple(judge(journals)),
        environment=(about := environment()), command=about["command"],
    )  # fmt: skip
    if file is not None:
        result.save(file)
    if as_json:
        print(result.to_json())
    else:
        for paragraph in findings(result):
            print(paragraph, end=os.linesep * 2)
        print_table(table(result))
    for line in unobserved(journals):
        print(f"rueda: {line}", file=sys.stderr)
    if status:
        message = f"the script has ended with status {status}; the checks cover what was seen before"
        print(f"rueda: {message}", file=sys.stderr)
    return 1 if result.has_failed else status
