"""The same command as a TrainJob of Kubeflow Trainer (``trainer.kubeflow.org/v1alpha1``).

The runtime ``torch-distributed`` starts one pod a machine and tells ``torchrun`` in each, by ``PET_*`` variables, how
many machines and workers there are and where the first one is; the command is the same in every pod.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from rueda.errors import LaunchError
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.slurm import job_name, shape

_RUNTIME = "torch-distributed"


def manifest(plan: LaunchPlan, *, nodes: int | None = 1, image: str = "") -> str:
    """Write the manifest of a plan, for ``kubectl apply -f -``.

    Args:
        plan: what to run.
        nodes: how many machines share the workers; None: as many as the plan has hosts.
        image: the container image, which holds the program and Rueda.

    >>> from rueda.world.launch.hosts import Host
    >>> plan = LaunchPlan(program=("train.py", "--lr", "0.1"), hosts=(Host(name="localhost", slots=8),))
    >>> print(manifest(plan, nodes=2, image="example.com/mine:1"))
    apiVersion: trainer.kubeflow.org/v1alpha1
    kind: TrainJob
    metadata:
      name: "train"
    spec:
      runtimeRef:
        name: "torch-distributed"
      trainer:
        image: "example.com/mine:1"
        numNodes: 2
        numProcPerNode: 4
        command:
          - "torchrun"
        args:
          - "train.py"
          - "--lr"
          - "0.1"
    <BLANKLINE>
    """
    if not image:
        raise LaunchError("--kubernetes needs an image that holds the program and Rueda; name it with --image")
    count, per_node = shape(plan, nodes)
    lines = [
        "apiVersion: trainer.kubeflow.org/v1alpha1",
        "kind: TrainJob",
        "metadata:",
        f"  name: {_text(job_name(plan))}",
        "spec:",
        "  runtimeRef:",
        f"    name: {_text(_RUNTIME)}",
        "  trainer:",
        f"    image: {_text(image)}",
        f"    numNodes: {count}",
        f"    numProcPerNode: {per_node}",
        "    command:",
        f"      - {_text('torchrun')}",
        "    args:",
        *(f"      - {_text(word)}" for word in _arguments(plan)),
    ]
    if plan.environment:
        lines.append("    env:")
        for name, value in plan.environment.items():
            lines += [f"      - name: {_text(name)}", f"        value: {_text(value)}"]
    return "\n".join([*lines, ""])


def _arguments(plan: LaunchPlan) -> Iterator[str]:
    """Give what follows ``torchrun``. ``python train.py`` is the script; any other program needs ``--no-python``."""
    program = list(plan.program)
    if plan.module:
        yield "-m"
    elif program[0] in ("python", "python3") and len(program) > 1 and program[1].endswith(".py"):
        program = program[1:]
    elif not program[0].endswith(".py"):
        yield "--no-python"
    # Kubernetes expands $(NAME) in arguments; a doubled $ stays one.
    yield from (word.replace("$(", "$$(") for word in program)


def _text(value: str) -> str:
    """Quote for YAML: a JSON string is one, but for characters above U+FFFF, which JSON writes as two halves."""
    return '"' + "".join(json.dumps(c)[1:-1] if c <= "\uffff" else f"\\U{ord(c):08x}" for c in value) + '"'
