"""The same command as a TrainJob of Kubeflow Trainer (``trainer.kubeflow.org/v1alpha1``).

The runtime ``torch-distributed`` starts one pod on each machine. ``PET_*`` variables tell ``torchrun`` in each pod the
number of machines and workers and the address of the first pod; the command is the same in every pod.

When a pod is to end, Kubernetes sends SIGTERM, which torchrun passes on, and SIGKILL after the pod's grace period. The
manifest sets both times to the plan's grace: ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT`` for torchrun, and for the pod, a little
longer, ``terminationGracePeriodSeconds`` in a patch of the runtime (Kubeflow Trainer 2.2 or newer).

An elastic job (``--min-np``) is a Job of Kubernetes itself: :mod:`rueda.world.launch.kubernetes_job`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rueda.errors import LaunchError
from rueda.world.launch.kubernetes_job import POD_MARGIN_SECONDS, job_manifest, secret_comments, secret_name
from rueda.world.launch.kubernetes_job import yaml_text as _text
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.slurm import job_name, nodes_and_tasks

_RUNTIME = "torch-distributed"
_PATCH = (
    "  runtimePatches:",
    '    - manager: "rueda.local/run"',
    "      trainingRuntimeSpec:",
    "        template:",
    "          spec:",
    "            replicatedJobs:",
    '              - name: "node"',
    "                template:",
    "                  spec:",
    "                    template:",
    "                      spec:",
)


def manifest(plan: LaunchPlan, *, nodes: int | None = 1, image: str = "") -> str:
    """Return the manifest of a plan, for ``kubectl apply -f -``.

    Args:
        plan: the program and the number of workers; an elastic plan makes the manifest of an elastic job.
        nodes: the number of machines; None: as many as the plan has hosts.
        image: the container image, which contains the program and Rueda.

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
        env:
          - name: "RUEDA_GRACE"
            value: "30"
          - name: "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
            value: "30"
      runtimePatches:
        - manager: "rueda.local/run"
          trainingRuntimeSpec:
            template:
              spec:
                replicatedJobs:
                  - name: "node"
                    template:
                      spec:
                        template:
                          spec:
                            terminationGracePeriodSeconds: 40
    <BLANKLINE>
    """
    if not image:
        raise LaunchError("--kubernetes needs an image that contains the program and Rueda; name it with --image")
    if plan.elastic is not None:
        return job_manifest(plan, nodes=nodes, image=image)
    count, per_node = nodes_and_tasks(plan, nodes)
    lines = [
        *(secret_comments(plan) if plan.references else []),
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
    grace = math.ceil(plan.grace)
    own = {"RUEDA_GRACE": str(grace), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(grace)}
    lines.append("    env:")
    for name, value in {**own, **plan.environment}.items():
        lines += [f"      - name: {_text(name)}", f"        value: {_text(value)}"]
    for name in plan.references:
        lines += [
            f"      - name: {_text(name)}",
            "        valueFrom:",
            "          secretKeyRef:",
            f"            name: {_text(secret_name(plan))}",
            f"            key: {_text(name)}",
        ]
    lines += [*_PATCH, f"                        terminationGracePeriodSeconds: {grace + POD_MARGIN_SECONDS}"]
    return "\n".join([*lines, ""])


def _arguments(plan: LaunchPlan) -> Iterator[str]:
    """Yield the arguments of ``torchrun``, which runs Python scripts, and any other program with ``--no-python``."""
    program = list(plan.program)
    if plan.module:
        yield "-m"
    elif program[0] in ("python", "python3") and len(program) > 1 and program[1].endswith(".py"):
        program = program[1:]
    elif not program[0].endswith(".py"):
        yield "--no-python"
    # Kubernetes expands $(NAME) in arguments, and turns $$( into $(.
    yield from (word.replace("$(", "$$(") for word in program)
