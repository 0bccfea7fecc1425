"""The same command as a Slurm batch script.

``srun`` starts the workers in place of Rueda's launcher. The batch script gives each the variables that torchrun would
set (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` ...), so that programs for ``torch.distributed`` run unchanged.

Before the job's time limit Slurm sends SIGUSR2 to the workers (``--signal``), which save and end with status 75; the
script then requeues the job, which continues if its command resumes (``rueda train TASK --run DIR --resume``). Programs
that do not handle SIGUSR2 ignore it. The output of all runs of a job goes to one file (``--open-mode=append``).

For an elastic job (``--min-np``) the script starts ``rueda run`` on the first node, which starts its agents on the
other nodes as steps of the job (:mod:`rueda.world.launch.srun`). A lost node does not end the job; a job whose first
node is lost, or that has too few workers for too long, is requeued.
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import PurePath

from rueda.errors import LaunchError
from rueda.world.launch.plan import LaunchPlan
from rueda.world.signals import REQUEUE_STATUS

_SIGNAL_MARGIN_SECONDS = 30  # beyond the grace, for the step that is running and for Slurm's coarse clock
_WORKER = (
    "trap '' USR1 USR2; export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID "
    'LOCAL_WORLD_SIZE=$PER_NODE GROUP_RANK=$SLURM_NODEID; exec "$@"'
)

_TAIL = (
    f'if [ "$status" -eq {REQUEUE_STATUS} ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
    'exit "$status"',
    "",
)


def batch_script(plan: LaunchPlan, *, nodes: int | None = 1, options: Sequence[str] = ()) -> str:
    """Return the batch script of a plan.

    Args:
        plan: the program and the number of workers; an elastic plan makes the script of an elastic job.
        nodes: the number of machines; None: the plan's hosts, requested by name.
        options: further options of sbatch, such as ``--gres=gpu:4``.

    >>> from rueda.world.launch.hosts import Host
    >>> plan = LaunchPlan(program=("train.py", "--lr", "0.1"), hosts=(Host(name="localhost", slots=8),))
    >>> print(batch_script(plan, nodes=2))
    #!/bin/bash
    #SBATCH --job-name=train
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=4
    #SBATCH --signal=USR2@60
    #SBATCH --requeue
    #SBATCH --open-mode=append
    <BLANKLINE>
    export PER_NODE=4
    export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    export MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
    export RUEDA_JOB_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
    srun --ntasks=8 --ntasks-per-node=4 --kill-on-bad-exit=1 --label bash -c \\
      'trap ...; export RANK=...; exec "$@"' \\
      worker python -u train.py --lr 0.1
    status=$?
    if [ "$status" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
    exit "$status"
    <BLANKLINE>
    """
    if plan.elastic is not None:
        return _elastic_script(plan, nodes, options)
    count, per_node = nodes_and_tasks(plan, nodes)
    return "\n".join(
        [
            *_head(plan, nodes, options, f"--signal=USR2@{_notice_seconds(plan)}"),
            f"export PER_NODE={per_node}",
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))",
            "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}",
            # A key of this job, by which its ranks know each other: see SECURITY.md.
            "export RUEDA_JOB_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
            f"srun --ntasks={count * per_node} --ntasks-per-node={per_node} --kill-on-bad-exit=1 --label bash -c \\",
            f"  {shlex.quote(_WORKER)} \\",
            f"  worker {shlex.join(portable_command(plan))}",
            "status=$?",
            *_TAIL,
        ]
    )


def _elastic_script(plan: LaunchPlan, nodes: int | None, options: Sequence[str]) -> str:
    """Return the batch script of an elastic job: the driver runs on the first node, and agents as steps on the others.

    ``--no-kill`` keeps the job when a node is lost. Slurm signals the batch script alone (``B:``), which passes the
    signal on to the driver: a copy to each step would let the nodes leave one by one.
    """
    per_node = nodes_and_tasks(plan, nodes)[1]
    return "\n".join(
        [
            *_head(plan, nodes, options, "--no-kill", f"--signal=B:USR2@{_notice_seconds(plan)}"),
            f"""hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/:{per_node}/' | paste -sd, -)""",
            'rueda run --ssh "python -m rueda.world.launch.srun" -H "$hosts" \\',
            f"  {shlex.join(elastic_options(plan))} \\",
            f"  {shlex.join((['-m'] if plan.module else []) + list(plan.program))} &",
            "driver=$! waiting=1",
            """for name in USR2 TERM; do trap "waiting=1; kill -$name $driver" "$name"; done""",
            'while [ -n "$waiting" ]; do waiting=; wait "$driver"; status=$?; done  # a signal interrupts `wait`',
            *_TAIL,
        ]
    )


def elastic_options(plan: LaunchPlan) -> list[str]:
    """Return the options of ``rueda run`` that make the same elastic job where the hosts are known.

    >>> from rueda.world.launch.elastic_job.settings import ElasticSettings
    >>> " ".join(elastic_options(LaunchPlan(program=("a.py",), elastic=ElasticSettings(least=2, most=8, restarts=3))))
    '--min-np 2 --max-np 8 --restarts 3 --timeout 30 --elastic-timeout 600 --grace 30'
    """
    elastic = plan.elastic
    assert elastic is not None
    if elastic.discovery is not None:
        raise LaunchError(
            "--host-discovery-script has no effect with --slurm or --kubernetes, which choose the hosts; remove it"
        )
    values = {
        "-np": elastic.wanted, "--min-np": elastic.least, "--max-np": elastic.most, "--restarts": elastic.restarts,
        "--timeout": elastic.timeout, "--elastic-timeout": elastic.wait, "--grace": plan.grace,
    }  # fmt: skip
    return [word for name, value in values.items() if value is not None for word in (name, f"{value:g}")]


def _notice_seconds(plan: LaunchPlan) -> int:
    return math.ceil(plan.grace) + _SIGNAL_MARGIN_SECONDS


def _head(plan: LaunchPlan, nodes: int | None, options: Sequence[str], *own: str) -> list[str]:
    """Return the first lines of a script: the options of sbatch, and the variables of the user."""
    count, per_node = nodes_and_tasks(plan, nodes)
    lines = [f"--job-name={job_name(plan)}", f"--nodes={count}", f"--ntasks-per-node={per_node}", *own]
    lines += ["--requeue", "--open-mode=append"]
    if nodes is None:
        lines.append("--nodelist=" + ",".join(host.name for host in plan.hosts))
    for option in options:
        if not option.startswith("-") or "\n" in option:
            raise LaunchError(
                "--sbatch", expected="one option, such as --gres=gpu:4", got=option, do="write --sbatch=--gres=gpu:4"
            )
    exports = [f"export {name}={shlex.quote(value)}" for name, value in plan.environment.items()]
    if plan.references:  # sbatch takes their values from the environment in which it runs
        lines.append(f"--export=ALL,{','.join(plan.references)}")
        exports += [f': "${{{name}?is not set; set it where you call sbatch}}"' for name in plan.references]
    return ["#!/bin/bash", *(f"#SBATCH {line}" for line in [*lines, *options]), "", *exports]


def submit_script(script: str) -> str:
    """Submit a script with sbatch and return what it prints (``Submitted batch job 7``)."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise LaunchError("there is no sbatch on PATH; submit from a machine of the Slurm cluster, or omit --submit")
    done = subprocess.run([sbatch], input=script, text=True, capture_output=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise LaunchError(f"sbatch refused the script ({last}); print it with --slurm and correct it")
    return done.stdout.strip()


def nodes_and_tasks(plan: LaunchPlan, nodes: int | None) -> tuple[int, int]:
    """Return the number of machines and the number of workers on each, which must be the same on all machines.

    >>> from rueda.world.launch.hosts import Host
    >>> nodes_and_tasks(LaunchPlan(program=("a",), hosts=(Host(name="localhost", slots=6),)), nodes=4)
    Traceback (most recent call last):
    rueda.errors.LaunchError: --nodes: expected a divisor of the 6 workers, got 4; change --nodes or -np
    """
    if nodes is None:
        slots = sorted({host.slots for host in plan.hosts})
        if len(slots) > 1:
            raise LaunchError(
                "the hosts", expected="the same number of workers on each", got=slots, do="choose other slots or -np"
            )
        return len(plan.hosts), slots[0]
    if nodes < 1 or plan.workers % nodes:
        raise LaunchError(
            "--nodes", expected=f"a divisor of the {plan.workers} workers", got=nodes, do="change --nodes or -np"
        )
    return nodes, plan.workers // nodes


def portable_command(plan: LaunchPlan) -> list[str]:
    """Return the command without any path of this machine.

    >>> portable_command(LaunchPlan(program=("tool.train", "-v"), module=True))
    ['python', '-u', '-m', 'tool.train', '-v']
    """
    if plan.module:
        return ["python", "-u", "-m", *plan.program]
    if plan.program[0].endswith(".py"):
        return ["python", "-u", *plan.program]
    return list(plan.program)


def job_name(plan: LaunchPlan) -> str:
    """Return a job name made from the program's; it is a DNS label, which Slurm and Kubernetes both accept.

    >>> job_name(LaunchPlan(program=("python", "My_Train.py")))
    'my-train'
    >>> job_name(LaunchPlan(program=("3.py",)))
    'rueda-3'
    """
    words = list(plan.program)
    scripts = [word for word in words if word.endswith(".py")]
    stem = PurePath((scripts or words)[0]).name.removesuffix(".py")
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:50].strip("-")
    return name if name and name[0].isalpha() else f"rueda-{name}".strip("-")
