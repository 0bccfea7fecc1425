"""``srun`` with the command line of ssh, so that an elastic job starts its agents as steps of its Slurm job.

The batch script of ``rueda run --slurm --min-np N`` gives it as ``--ssh "python -m rueda.world.launch.srun"``. It needs
neither an sshd on the nodes nor a key. Slurm knows the agents as steps of the job, and ends them with it.

The step overlaps with the batch script and with other steps: it takes no processor, memory or GPU from them, and may
use all that the job has on the node, without being bound to a part of its cores.

If the first node is lost, and with it the batch script, Slurm keeps the rest of a job with ``--no-kill`` allocated,
where nothing runs any more (seen on 22.05). So a step whose srun is gone watches the job, and requeues it in this case.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from rueda.world.launch.remote import destination

_OPTIONS = (
    "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--overlap", "--cpu-bind=none", "--input=0", "--quiet",
    "--kill-on-bad-exit=0",
)  # fmt: skip


# After the agent: if srun does not answer any more, the first node may be lost. Slurm takes a lost node out of a job
# with --no-kill, and keeps the others allocated for nothing when that was the node of the batch script.
_WATCH = r"""
(%s)
status=$?
timeout 10 bash -c ": <>/dev/tcp/$SLURM_SRUN_COMM_HOST/$SLURM_SRUN_COMM_PORT" 2>/dev/null && exit "$status"
exec </dev/null >/dev/null 2>&1
while sleep 5; do
  job=$(scontrol --oneliner show job "$SLURM_JOB_ID") || continue
  case "$job" in *" JobState=RUNNING "*) ;; *) exit ;; esac
  first=${job##* BatchHost=} nodes=${job##* NodeList=}
  if ! scontrol show hostnames "${nodes%%%% *}" | grep -Fqx -- "${first%%%% *}"; then
    scontrol requeue "$SLURM_JOB_ID"
    exit
  fi
done
"""


def srun_command(host: str, command: str) -> list[str]:
    """Return the command that runs a shell command on one node of this Slurm job, and requeues it if need be.

    >>> srun_command("node7", "exec true")
    ['srun', '--nodes=1', ..., '--nodelist=node7', 'bash', '-c', '\\n(exec true)\\nstatus=...']
    """
    return ["srun", *_OPTIONS, f"--nodelist={host}", "bash", "-c", _WATCH % command]


def node_address(host: str, described: str) -> str:
    """Return the address of a node from what ``scontrol show node`` prints, else its name.

    >>> node_address("node7", "NodeName=node7 NodeAddr=10.0.0.7 NodeHostName=node7")
    '10.0.0.7'
    """
    found = re.search(r"\bNodeAddr=(\S+)", described)
    return host if found is None else found[1]


def main(words: Sequence[str]) -> None:
    """Become srun; with ``-G``, print the address of the node, as ``ssh -G`` does."""
    target = destination(words)
    if target.asks_for_settings:
        asked = ["scontrol", "show", "node", target.host]
        described = subprocess.run(asked, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
        print("hostname", node_address(target.host, described))
        return
    arguments = srun_command(target.host, target.command)
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        sys.exit(f"srun cannot be started ({error.strerror}); start this job as a Slurm job")


if __name__ == "__main__":
    main(sys.argv[1:])
