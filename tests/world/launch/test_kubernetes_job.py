"""The manifest of an elastic job: it fits the schema of Kubernetes, and its commands survive a lost pod."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic_loop import LOOP, said, trains
from rueda.errors import LaunchError
from rueda.world.launch.elastic_job.settings import ElasticSettings
from rueda.world.launch.hosts import Host
from rueda.world.launch.kubernetes import manifest
from rueda.world.launch.plan import LaunchPlan

SCHEMA = json.loads((Path(__file__).parent / "kubernetes_schema.json").read_text())
ODD = ("--name", "it's a 'name'", '$HOME "x" $(date)', "ü😀\x7f\nnew line", "", "-v")
_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": (int, float)}


def violations(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """Return where a value does not fit a schema: JSON Schema, as far as that of Kubernetes uses it."""
    if "$ref" in schema:
        return violations(value, SCHEMA["definitions"][schema["$ref"]], where)
    if "oneOf" in schema:
        return [] if any(not violations(value, one) for one in schema["oneOf"]) else [f"{where}: {value!r}"]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    fits = any(
        isinstance(value, _TYPES[kind]) and (kind != "integer" or not isinstance(value, bool))
        for kind in kinds
        if kind != "null"
    )
    if kinds and not fits:
        return [f"{where}: expected {kinds}, got {value!r}"]
    found = [f"{where}: {value!r} is none of {schema['enum']}"] if value not in schema.get("enum", [value]) else []
    if isinstance(value, list):
        for index, one in enumerate(value):
            found += violations(one, schema.get("items", {}), f"{where}[{index}]")
    if isinstance(value, dict):
        found += [f"{where}.{name} is missing" for name in schema.get("required", []) if name not in value]
        other = schema.get("additionalProperties", {})
        for name, one in value.items():
            known = schema.get("properties", {}).get(name, other)
            found += (
                [f"{where}.{name} is unknown"] if known is False else violations(one, known or {}, f"{where}.{name}")
            )
    return found


def documents(**changes: Any) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    settings: dict[str, Any] = {
        "program": ("train.py", *ODD), "hosts": (Host(name="localhost", slots=6),), "environment": {"A": "$(b)"},
        "references": ("TOKEN",), "grace": 90, "elastic": ElasticSettings(least=2, most=6, restarts=7, timeout=20),
    }  # fmt: skip
    text = manifest(LaunchPlan(**{**settings, **changes}), nodes=3, image="example.com/mine:1")
    return list(yaml.safe_load_all(text))


def test_the_manifest_fits_the_schema_of_kubernetes() -> None:
    found = {}
    for document in documents():
        kind = f"{document['apiVersion']} {document['kind']}"
        assert violations(document, SCHEMA["definitions"][SCHEMA["kinds"][kind]], kind) == []
        found[document["kind"]] = document
    assert sorted(found) == ["Job", "NetworkPolicy", "Secret", "Service"]
    job = found["Job"]["spec"]
    pod = job["template"]["spec"]
    assert (job["completions"], job["parallelism"], job["backoffLimitPerIndex"]) == (3, 3, 7)
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] == 100  # as the Job's fields need
    assert {one["tolerationSeconds"] for one in pod["tolerations"]} == {20}
    container = pod["containers"][0]
    words = [word.replace("$$(", "$(") for word in container["args"]]
    assert tuple(words[-len(ODD) :]) == ODD
    assert words[words.index("-H") + 1] == "train-0:2,train-1.train:2,train-2.train:2"
    assert pod["subdomain"] == found["Service"]["metadata"]["name"] == "train"
    assert job["template"]["metadata"]["labels"] == found["Service"]["spec"]["selector"]
    environment = {entry["name"]: entry for entry in container["env"]}
    assert environment["A"]["value"] == "$$(b)"
    assert environment["TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "train-environment", "key": "TOKEN"}
    secret = environment["RUEDA_JOB_KEY"]["valueFrom"]["secretKeyRef"]
    assert secret == {"name": found["Secret"]["metadata"]["name"], "key": "RUEDA_JOB_KEY"}
    assert len(bytes.fromhex(found["Secret"]["stringData"]["RUEDA_JOB_KEY"])) == 32


def test_each_manifest_has_a_key_of_its_own() -> None:
    keys = {documents()[0]["stringData"]["RUEDA_JOB_KEY"] for _ in range(2)}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("spec", "completions"), "3", "Job.spec.completions: expected"),
        (("spec", "backofLimitPerIndex"), 3, "Job.spec.backofLimitPerIndex is unknown"),
        (("spec", "podFailurePolicy", "rules"), [{}], "rules[0].action is missing"),
        (("kind",), "Jobs", "'Jobs' is none of"),
    ],
)
def test_the_schema_finds_mistakes(path: tuple[str, ...], value: Any, says: str) -> None:
    job = documents()[-1]
    node = job
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value
    found = violations(job, SCHEMA["definitions"]["io.k8s.api.batch.v1.Job"], "Job")
    assert len(found) == 1 and says in found[0]


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(LaunchError, match="--nodes: expected a divisor of the 4 workers, got 3"):
        documents(hosts=(Host(name="localhost", slots=4),))
    with pytest.raises(LaunchError, match="--host-discovery-script has no effect"):
        documents(elastic=ElasticSettings(most=6, discovery="./hosts.sh"))


def pod_processes(hosts: Any, place: str) -> list[int]:
    """The processes of a pod: all in its network, without the sshd that other tests use."""
    found = []
    listed = subprocess.run(["ip", "netns", "pids", f"{hosts.prefix}{place}"], capture_output=True, text=True).stdout
    for pid in listed.split():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"sshd" not in line:
            found.append(int(pid))
    return found


def test_a_pod_that_is_killed_joins_again_and_so_does_the_driver(launcher: Any, hosts: Any, tmp_path: Path) -> None:
    """The commands of the manifest, in network namespaces; other addresses stand for the names of the pods."""
    launcher.script(LOOP, "train.py")
    job = documents(program=("train.py",), environment={}, references=(), hosts=(Host(name="localhost", slots=3),),
                    elastic=ElasticSettings(least=1, most=3, timeout=20), grace=20)[-1]  # fmt: skip
    container = job["spec"]["template"]["spec"]["containers"][0]
    for name, more in (("python", ""), ("rueda", "-m rueda")):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {more} "$@"\n')
        (tmp_path / name).chmod(0o755)
    common = {"RUEDA_JOB_KEY": "secret", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = [*container["command"], *container["args"]]
    words[words.index("-H") + 1] = "hostD:1,10.77.0.2:1,10.77.0.3:1"

    def pod(place: str, index: str) -> Any:
        return launcher.start(command=[*hosts.at(place), *words], JOB_COMPLETION_INDEX=index, **common)

    def wait_for(driver: Any, size: int) -> str:
        text = ""
        for line in driver.process.stdout:
            text += line
            if trains(text, size):
                return text
        raise AssertionError(text + driver.process.stderr.read())

    def driver() -> Any:
        return launcher.start(command=hosts.inside(words), JOB_COMPLETION_INDEX="0", **common)

    pods = {"a": pod("a", "1"), "b": pod("b", "2")}
    first = driver()
    before = {line.rank: line.pid for line in said(wait_for(first, 3))}
    for pid in pod_processes(hosts, "b"):
        os.kill(pid, signal.SIGKILL)
    text = wait_for(first, 2)
    assert {line.pid for line in said(text) if line.size == 2} == {
        before[0],
        before[1],
    }  # survivors keep their processes
    pods["b"] = pod("b", "2")  # as the Job's controller starts it again
    wait_for(first, 3)

    first.process.kill()  # pod 0 is lost, and starts again: the other pods stay
    second = driver()
    wait_for(second, 3)
    pods["a"].process.send_signal(signal.SIGTERM)  # the pod is to be evicted
    assert pods["a"].process.wait(120) == 128 + signal.SIGTERM
    wait_for(second, 2)
    (launcher.folder / "enough").touch()
    status, _, err = second.end()
    assert status == 0, err
    assert "10.77.0.2 leaves (it got SIGTERM)" in err
    pods["b"].process.send_signal(signal.SIGTERM)
    assert pods["b"].process.wait(60) == 128 + signal.SIGTERM
    assert pod_processes(hosts, "a") == pod_processes(hosts, "b") == []


def test_a_pod_without_the_key_says_so(launcher: Any) -> None:
    words = [sys.executable, "-m", "rueda.world.launch.pod", "true"]
    environ = {"JOB_COMPLETION_INDEX": "1", "RUEDA_JOB_KEY": ""}
    status, out, err = launcher.run(command=words, **environ)
    assert (status, out) == (1, "")
    assert err == "rueda: RUEDA_JOB_KEY is not set; apply the Secret of the manifest of `rueda run --kubernetes`\n"
