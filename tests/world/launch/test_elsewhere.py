"""The same command for Slurm and Kubernetes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rueda.errors import LaunchError
from rueda.world.launch.hosts import Host, parse_hosts
from rueda.world.launch.kubernetes import manifest
from rueda.world.launch.plan import LaunchPlan
from rueda.world.launch.slurm import batch_script, submit_script

ODD = ("--name", "it's a 'name'", '$HOME "x" $(date) `date`', "ü😀\x7f\nnew line", "", "-v")
PLAN = LaunchPlan(
    program=("train.py", *ODD), hosts=(Host(name="localhost", slots=4),), environment={"A_B": "1 '2"},
    references=("TOKEN",),
)  # fmt: skip

SHOW = """
import json, os, sys
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT OMP_NUM_THREADS A_B".split()
names += ["TOKEN", "RUEDA_JOB_KEY"]
print(json.dumps([sys.argv[1:], {name: os.environ[name] for name in names}]))
"""
SRUN = """#!/bin/bash
# As srun would: every task, with its variables.
while [[ $1 == --* ]]; do shift; done
for task in 0 1 2 3; do
  SLURM_PROCID=$task SLURM_NTASKS=4 SLURM_LOCALID=$((task % 2)) SLURM_NODEID=$((task / 2)) "$@" || exit
done
"""


def test_the_batch_script_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHOW)
    tools = {"srun": SRUN, "scontrol": "#!/bin/sh\nprintf 'node7\\nnode8\\n'\n"}
    tools["python"] = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script = batch_script(PLAN, nodes=2, options=["--gres=gpu:2", "--time=10"])
    assert script.splitlines()[:10] == [
        "#!/bin/bash",
        "#SBATCH --job-name=train",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --signal=USR2@60",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --export=ALL,TOKEN",
        "#SBATCH --gres=gpu:2",
        "#SBATCH --time=10",
    ]
    assert sys.prefix not in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "SLURM_"))}
    environ |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "node[7-8]"}
    without = subprocess.run(["bash"], input=script, text=True, cwd=tmp_path, env=environ, capture_output=True)
    assert without.returncode != 0 and without.stdout == ""
    assert without.stderr.endswith("TOKEN: is not set; set it where you call sbatch\n")
    environ["TOKEN"] = "hunter2"
    done = subprocess.run(["bash"], input=script, text=True, cwd=tmp_path, env=environ, capture_output=True, check=True)
    keys = set()
    for rank, line in enumerate(done.stdout.splitlines()):
        arguments, variables = json.loads(line)
        assert tuple(arguments) == ODD
        assert variables == {
            "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2), "MASTER_ADDR": "node7", "MASTER_PORT": str(20000 + 123456 % 12000),
            "OMP_NUM_THREADS": "1", "A_B": "1 '2", "TOKEN": "hunter2", "RUEDA_JOB_KEY": variables["RUEDA_JOB_KEY"],
        }  # fmt: skip
        keys.add(variables["RUEDA_JOB_KEY"])
    assert len(keys) == 1 and len(bytes.fromhex(keys.pop())) == 32  # one for all ranks
    assert rank == 3


def test_named_hosts_are_asked_for() -> None:
    plan = LaunchPlan(program=("python", "train.py"), hosts=tuple(parse_hosts("n1:2,n2:2")))
    script = batch_script(plan, nodes=None)
    assert "#SBATCH --nodelist=n1,n2\n" in script
    assert "  worker python train.py\n" in script


SRUN_ONE = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 SLURM_NODEID=0 exec "$@"
"""
UNHANDLED = "import os, signal; os.kill(os.getpid(), signal.SIGUSR2); raise SystemExit(0)"


@pytest.mark.parametrize(
    ("program", "status", "requeued"),
    [("raise SystemExit(75)", 75, True), ("raise SystemExit(1)", 1, False), (UNHANDLED, 0, False)],
    ids=["saved before the time limit", "failed", "does not handle SIGUSR2"],
)
def test_slurm_requeues_what_was_saved(program: str, status: int, requeued: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program)
    tools = {"srun": SRUN_ONE, "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'}
    tools["scontrol"] = '#!/bin/sh\n[ "$1" = requeue ] && echo "$2" > requeued; echo node7\n'
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script = batch_script(LaunchPlan(program=("train.py",), grace=100.5), nodes=1)
    assert "#SBATCH --signal=USR2@131\n" in script
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "12"}
    done = subprocess.run(["bash"], input=script, text=True, cwd=tmp_path, env=environ, capture_output=True)
    assert done.returncode == status, done.stderr
    assert (tmp_path / "requeued").exists() == requeued


@pytest.mark.parametrize(("hosts", "nodes"), [("a:2,b:1", None), ("localhost:4", 3), ("localhost:4", 0)])
def test_shapes_that_do_not_fit(hosts: str, nodes: int | None) -> None:
    plan = LaunchPlan(program=("train.py",), hosts=tuple(parse_hosts(hosts)))
    with pytest.raises(LaunchError):
        batch_script(plan, nodes=nodes)
    with pytest.raises(LaunchError):
        manifest(plan, nodes=nodes, image="i")


@pytest.mark.parametrize("variables", [{"environment": {"A;touch x;B": "1"}}, {"references": ("A$(date)",)}])
def test_a_name_that_a_shell_would_run_is_refused(variables: Any) -> None:
    with pytest.raises(LaunchError, match="the name of a variable: expected letters, digits and _"):
        LaunchPlan(program=("train.py",), **variables)


@pytest.mark.parametrize("option", ["gres=gpu:4", "--a\nrm -rf x"])
def test_a_bad_sbatch_option(option: str) -> None:
    with pytest.raises(LaunchError, match="--sbatch"):
        batch_script(PLAN, nodes=1, options=[option])


def test_submitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="no sbatch"):
        submit_script("")
    sbatch = tmp_path / "sbatch"
    sbatch.write_text('#!/bin/sh\nread line; [ "$line" = good ] || { echo "error: bad" >&2; exit 1; }; echo job 7\n')
    sbatch.chmod(0o755)
    assert submit_script("good\n") == "job 7"
    with pytest.raises(LaunchError, match="error: bad"):
        submit_script("other\n")


@pytest.mark.parametrize(
    ("program", "module", "expected"),
    [
        (("train.py", *ODD), False, ["train.py", *(word.replace("$(", "$$(") for word in ODD)]),
        (("python", "train.py", "-v"), False, ["train.py", "-v"]),
        (("tool.train", "-v"), True, ["-m", "tool.train", "-v"]),
        (("./tool", "-v"), False, ["--no-python", "./tool", "-v"]),
    ],
)
def test_the_manifest(program: tuple[str, ...], module: bool, expected: list[str]) -> None:
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    plan = LaunchPlan(
        program=program, module=module, hosts=(Host(name="localhost", slots=4),), environment={"A_B": "yes"},
        references=("TOKEN",), grace=90,
    )  # fmt: skip
    pod = {"terminationGracePeriodSeconds": 100}
    node = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    patch = {"template": {"spec": {"replicatedJobs": [node]}}}
    job = yaml.safe_load(manifest(plan, nodes=2, image="example.com/mine:1"))
    secret = f"{job['metadata']['name']}-environment"
    assert job == {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job["metadata"]["name"]},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": "example.com/mine:1",
                "numNodes": 2,
                "numProcPerNode": 2,
                "command": ["torchrun"],
                "args": expected,
                "env": [
                    {"name": "RUEDA_GRACE", "value": "90"},
                    {"name": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "value": "90"},
                    {"name": "A_B", "value": "yes"},
                    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "TOKEN"}}},
                ],
            },
            "runtimePatches": [{"manager": "rueda.local/run", "trainingRuntimeSpec": patch}],
        },
    }


def test_a_manifest_needs_an_image() -> None:
    with pytest.raises(LaunchError, match="--image"):
        manifest(PLAN)
