"""All checks together."""

from __future__ import annotations

from rueda.check.audit.judge.checks import CHECKS
from rueda.check.audit.judge.data import judge_data
from rueda.check.audit.judge.evaluation import judge_evaluation
from rueda.check.audit.judge.files import judge_files
from rueda.check.audit.judge.journals import Journals
from rueda.check.audit.judge.machine import judge_machine
from rueda.check.audit.judge.randomness import judge_randomness
from rueda.check.audit.judge.rates import judge_rates
from rueda.check.audit.judge.updates import judge_updates
from rueda.check.audit.judge.waiting import judge_waiting
from rueda.records.script_check import Verdict

_JUDGES = (
    *(judge_data, judge_waiting, judge_updates, judge_rates, judge_randomness),
    *(judge_evaluation, judge_files, judge_machine),
)


def judge(journals: Journals) -> list[Verdict]:
    """Make all checks, in the order of the table."""
    found = {verdict.check: verdict for each in _JUDGES for verdict in each(journals)}
    return [found[check] for check in CHECKS]
