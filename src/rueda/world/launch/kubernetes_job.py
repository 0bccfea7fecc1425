"""An elastic job as a Kubernetes manifest: an Indexed Job (``batch/v1``) that restarts only the pods that failed.

Each machine is one pod (:mod:`rueda.world.launch.pod`). What the manifest asks of Kubernetes:

========================  ============================================================================================
field                     why
========================  ============================================================================================
``completionMode``        Indexed: a pod has a number and a name, which a pod that takes its place gets again
``backoffLimitPerIndex``  the failures of one pod are its own; others are not restarted (Kubernetes 1.29)
``podFailurePolicy``      a pod that was evicted or preempted does not count; an error of the program ends the Job,
                          since the driver has tried what it could
``successPolicy``         the Job is complete when pod 0, the driver, has ended with status 0 (Kubernetes 1.31)
``tolerations``           a pod on a machine that does not answer is replaced after ``--timeout``, not five minutes
``/dev/shm``              as large as the pod's memory, not 64 MB: workers of a host exchange gradients there
``Service``               headless: the names of the pods
``NetworkPolicy``         no other pod can connect, if the cluster's network enforces policies
``Secret``                the key of this job, by which its pods know each other
========================  ============================================================================================

Kubernetes starts a pod again with the same name; the driver, which tries lost hosts again and again, finds it there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rueda.errors import LaunchError
from rueda.world.authentication import KEY_VARIABLE, new_key
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.pod import PORT
from rueda.world.launch.slurm import elastic_options, job_name, nodes_and_tasks
from rueda.world.signals import REQUEUE_STATUS

POD_MARGIN_SECONDS = 10  # of a pod's grace period, for the launcher's own exit after its workers
_POD_RESTARTS = 100  # of each pod, unless --restarts says it; the pauses between them grow to six minutes
_KILLED = (137, 143)  # by SIGKILL, as when the memory is used up, and by SIGTERM
_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def job_manifest(plan: LaunchPlan, *, nodes: int | None = 1, image: str, key: str | None = None) -> str:
    """Return the manifest of an elastic plan, for ``kubectl apply -f -``.

    Args:
        plan: the program and the limits of the number of workers.
        nodes: the number of pods; None: as many as the plan has hosts.
        image: the container image, which contains the program and Rueda.
        key: the job's key; by default a new random one.
    """
    count, per_node = nodes_and_tasks(plan, nodes)
    name = job_name(plan)
    if count < 1:
        raise LaunchError("--nodes", expected="1 or more", got=count, do="correct it")
    label = {"app.kubernetes.io/name": name}
    hosts = ",".join([f"{name}-0:{per_node}", *(f"{name}-{index}.{name}:{per_node}" for index in range(1, count))])
    documents = [
        {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{name}-key"},
            "stringData": {KEY_VARIABLE: key or new_key()},
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {
                "clusterIP": "None", "publishNotReadyAddresses": True, "selector": label,
                "ports": [{"name": "pod", "port": PORT}],
            },
        },
        {
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name},
            "spec": {
                "podSelector": {"matchLabels": label}, "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": label}}]}],
            },
        },
        {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {
                **_job(plan, count), "template": {"metadata": {"labels": label}, "spec": _pod(plan, hosts, image)},
            },
        },
    ]  # fmt: skip
    comments = ["# The Secret holds the key of this job: keep this manifest to yourself."]
    if plan.references:
        comments += secret_comments(plan)
    return "\n".join(comments) + "\n" + "---\n".join("\n".join(yaml_lines(one)) + "\n" for one in documents)


def _job(plan: LaunchPlan, count: int) -> dict[str, Any]:
    assert plan.elastic is not None
    restarts = plan.elastic.restarts
    again = {"containerName": "rueda", "operator": "NotIn", "values": sorted((REQUEUE_STATUS, *_KILLED))}
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimitPerIndex": _POD_RESTARTS if restarts is None else restarts,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": again},
            ]
        },
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
    }


def _pod(plan: LaunchPlan, hosts: str, image: str) -> dict[str, Any]:
    assert plan.elastic is not None
    driver = ["rueda", "run", "--ssh", "python -m rueda.world.launch.pod_link", "-H", hosts]
    words = [*driver, *elastic_options(plan), *(["-m"] if plan.module else []), *plan.program]
    grace = math.ceil(plan.grace)
    own = {"RUEDA_GRACE": str(grace), "PYTHONUNBUFFERED": "1"}
    environment: list[dict[str, Any]] = [
        {"name": variable, "value": value.replace("$(", "$$(")}
        for variable, value in {**own, **plan.environment}.items()
    ]
    secrets = {KEY_VARIABLE: f"{job_name(plan)}-key", **dict.fromkeys(plan.references, secret_name(plan))}
    environment += [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": variable}}}
        for variable, secret in secrets.items()
    ]
    seconds = math.ceil(plan.elastic.timeout)
    return {
        "restartPolicy": "Never",
        "subdomain": job_name(plan),
        "terminationGracePeriodSeconds": grace + POD_MARGIN_SECONDS,
        "tolerations": [
            {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
            for taint in _UNREACHABLE
        ],
        "containers": [
            {
                "name": "rueda",
                "image": image,
                "command": ["python", "-m", "rueda.world.launch.pod"],
                # Kubernetes expands $(NAME) in arguments, and turns $$( into $(.
                "args": [word.replace("$(", "$$(") for word in words],
                "env": environment,
                "ports": [{"name": "pod", "containerPort": PORT}],
                "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
            }
        ],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }  # fmt: skip


def secret_name(plan: LaunchPlan) -> str:
    """Return the name of the Secret that holds the variables of ``-x NAME``.

    >>> secret_name(LaunchPlan(program=("train.py",)))
    'train-environment'
    """
    return f"{job_name(plan)}-environment"


def secret_comments(plan: LaunchPlan) -> list[str]:
    """Return the comments that say how to make the Secret of ``-x NAME`` from the user's environment."""
    names = "|".join(plan.references)
    make = f"env | grep -E '^({names})=' | kubectl create secret generic {secret_name(plan)} --from-env-file=/dev/stdin"
    return [f"# Needs the Secret {secret_name(plan)}; to make it from your environment:", f"# {make}"]


def yaml_text(value: str) -> str:
    """Quote for YAML as JSON does, except for characters above U+FFFF, which JSON writes as two escapes.

    >>> yaml_text('say "yes"')
    '"say \\\\"yes\\\\""'
    """
    return '"' + "".join(json.dumps(c)[1:-1] if c <= "\uffff" else f"\\U{ord(c):08x}" for c in value) + '"'


def yaml_lines(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[str]:
    """Yield the lines of a mapping or a list in YAML's block style; every text is quoted.

    >>> print("\\n".join(yaml_lines({"name": "a", "ports": [{"port": 1, "open": True}]})))
    name: "a"
    ports:
      - port: 1
        open: true
    """
    for entry in value.items() if isinstance(value, Mapping) else (("-", one) for one in value):
        key, inner = entry
        head = "-" if key == "-" else f"{key if key.replace('_', '').isalnum() else yaml_text(key)}:"
        if isinstance(inner, str):
            yield f"{head} {yaml_text(inner)}"
        elif isinstance(inner, (Mapping, Sequence)):
            lines = list(yaml_lines(inner))
            if head == "-":
                yield f"- {lines[0]}"
                yield from (f"  {line}" for line in lines[1:])
            else:
                yield head
                yield from (f"  {line}" for line in lines)
        else:
            yield f"{head} {json.dumps(inner)}"
