"""A CPU that advertises AMX and cannot run it: simulated flags, and a child process that really dies by SIGILL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commandline import settle_in
from rueda import Recipe, fit, init
from rueda.errors import WorldError
from rueda.examine.loading import load_model
from rueda.measure import measure
from rueda.study import planned_run, study_techniques
from rueda.study.learning_curve import measure_learning_curve
from rueda.study.planned_run import PlannedRun
from rueda.tasks.loading import load_measurable
from rueda.world import instruction_sets
from tinytask import network, tiny_task, training

FLAGS = "fpu sse avx2 avx512f avx512_bf16 avx512_fp16"
CPUS = {  # flags, the precisions for which they promise AMX
    "no AMX": (FLAGS, ()),
    "AMX": (f"{FLAGS} amx_bf16 amx_tile amx_int8", ("bf16",)),
    "AMX for fp16, too": (f"{FLAGS} amx_bf16 amx_tile amx_fp16", ("bf16", "fp16")),
    "no tiles": (f"{FLAGS} amx_bf16", ()),
    "integers only": (f"{FLAGS} amx_tile amx_int8", ()),
}
AMX = CPUS["AMX"][0]


def cpuinfo(flags: str) -> str:
    core = f"processor : 0\nmodel name\t: Some Xeon\nflags\t\t: {flags}\nbugs\t\t: amx_tile amx_bf16\n\n"
    return core * 2


class Machine:
    """A machine of which we say what its CPU promises and what its oneDNN survives."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, monkeypatch
        self.tries = folder / "tries"
        monkeypatch.setenv("RUEDA_CACHE", str(folder / "cache"))
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")  # so that it is put back, whoever sets it
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
        monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
        self.be(flags=AMX, survives=())

    def be(self, *, flags: str, survives: tuple[str, ...], otherwise: str = "kill -ILL $$") -> None:
        (self.folder / "cpuinfo").write_text(cpuinfo(flags))
        cases = "".join(f"'{limit}') exit 0;; " for limit in survives)
        probe = (
            f'echo "$ONEDNN_MAX_CPU_ISA" >> {self.tries}; case "$ONEDNN_MAX_CPU_ISA" in {cases}*) {otherwise};; esac'
        )
        self.child = ("sh", "-c", probe)
        self.patch.setattr(instruction_sets, "_CPUINFO", self.folder / "cpuinfo")
        self.patch.setattr(instruction_sets, "_CHILD", self.child)
        self.start_process()

    def start_process(self) -> None:
        """Forget what a process remembers."""
        instruction_sets._advertised_here.cache_clear()
        instruction_sets._answers.clear()
        instruction_sets._print_once.cache_clear()

    def tried(self) -> list[str]:
        return self.tries.read_text().split("\n")[:-1] if self.tries.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path, monkeypatch)
    yield made
    made.start_process()


@pytest.mark.parametrize(("flags", "promised"), CPUS.values(), ids=CPUS)
def test_what_a_cpu_promises(flags: str, promised: tuple[str, ...]) -> None:
    assert instruction_sets.advertised(cpuinfo(flags)) == promised
    assert instruction_sets.advertised("") == ()


@pytest.mark.parametrize("best", range(len(instruction_sets.LIMITS)))
def test_the_highest_that_works_is_chosen_and_remembered(best: int, machine: Machine) -> None:
    limit = instruction_sets.LIMITS[best]
    machine.be(flags=AMX, survives=instruction_sets.LIMITS[best:])
    wanted = {"ONEDNN_MAX_CPU_ISA": limit} if limit else {}
    for _ in range(2):
        machine.start_process()
        assert instruction_sets.limits({"PATH": os.environ["PATH"]}, "bf16") == wanted
    assert machine.tried() == list(instruction_sets.LIMITS[: best + 1])


def test_another_boot_is_tried_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.be(flags=AMX, survives=("",))
    assert instruction_sets.limits(os.environ) == {}
    (machine.folder / "boot").write_text("another")
    monkeypatch.setattr(instruction_sets, "_BOOT", machine.folder / "boot")
    machine.start_process()
    assert instruction_sets.limits(os.environ) == {}
    assert machine.tried() == ["", ""]


NOT_TRIED = {
    "a CPU without AMX": (CPUS["no AMX"][0], "bf16"),
    "a CPU without AMX, precision unknown": (CPUS["no AMX"][0], None),
    "float32": (AMX, "float32"),
    "float64": (AMX, "float64"),
    "fp16, where AMX has no fp16": (AMX, "fp16"),
}


@pytest.mark.parametrize(("flags", "precision"), NOT_TRIED.values(), ids=NOT_TRIED)
def test_nothing_is_tried_without_need(flags: str, precision: str | None, machine: Machine) -> None:
    machine.be(flags=flags, survives=())
    assert instruction_sets.limits(os.environ, precision) == {}
    assert machine.tried() == []


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_a_limit_of_the_users_own_is_tested_and_kept(name: str, machine: Machine) -> None:
    machine.be(flags=AMX, survives=("AVX2", "AVX512_CORE"))
    assert instruction_sets.limits({**os.environ, name: "AVX2"}, "bf16") == {}
    assert machine.tried() == ["AVX2"]
    with pytest.raises(WorldError, match=f"^{name}: .*got 'AVX512_CORE_AMX'; unset it"):
        instruction_sets.limits({**os.environ, name: "AVX512_CORE_AMX"}, "bf16")
    assert instruction_sets.limits({**os.environ, name: "AVX512_CORE_AMX"}) == {}  # nobody asked for bf16


def test_where_nothing_works_float32_is_named(machine: Machine) -> None:
    with pytest.raises(WorldError, match="use precision=float32"):
        instruction_sets.limits(os.environ, "bf16")
    assert instruction_sets.limits(os.environ) == {}


@pytest.mark.parametrize("otherwise", ["exit 1", "kill -KILL $$"])
def test_where_nothing_could_be_tried_half_precision_gets_a_safe_limit(
    otherwise: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.be(flags=AMX, survives=(), otherwise=otherwise)
    for _ in range(2):
        machine.start_process()
        assert instruction_sets.limits(os.environ) == {}  # nobody asked for half precision
        assert machine.tried() == [""]
    safe = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    for _ in range(2):
        machine.start_process()
        assert instruction_sets.limits(os.environ, "bf16") == safe
        assert instruction_sets.limits({**os.environ, **safe}, "bf16") == {}
        assert machine.tried() == list(instruction_sets.LIMITS)  # once for all processes
    monkeypatch.setattr(instruction_sets, "_UNTRIED_SECONDS", 0.0)
    machine.be(flags=AMX, survives=instruction_sets.LIMITS)
    assert instruction_sets.limits(os.environ, "bf16") == {}  # but not for ever


def test_a_limit_that_works_is_better_than_one_that_could_not_be_tried(machine: Machine) -> None:
    machine.be(flags=AMX, survives=("AVX2",), otherwise="exit 1")
    assert instruction_sets.limits(os.environ, "bf16") == {"ONEDNN_MAX_CPU_ISA": "AVX2"}


def test_trying_takes_a_limited_time_and_leaves_no_process(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.be(flags=AMX, survives=(), otherwise=f"echo $$ > {machine.folder}/pid; exec sleep 60")
    monkeypatch.setattr(instruction_sets, "_TRYING_SECONDS", 2.0)
    assert instruction_sets.limits(os.environ, "bf16") == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    assert machine.tried() == [""]
    with pytest.raises(ProcessLookupError):
        os.kill(int((machine.folder / "pid").read_text()), 0)


def test_a_process_that_must_end_ends_the_child(machine: Machine) -> None:
    machine.be(flags=AMX, survives=(), otherwise="exec sleep 60")
    thread = threading.Thread(target=instruction_sets.limits, args=(os.environ,))
    thread.start()
    while not machine.tried() or instruction_sets._child is None:
        time.sleep(0.01)
    instruction_sets.end_child()
    thread.join(10)
    assert not thread.is_alive()
    machine.be(flags=AMX, survives=("AVX2",))
    assert instruction_sets.limits(os.environ) == {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # nothing was remembered of that


def test_modules_of_the_working_directory_do_not_hide_pythons_own(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_sets, "_CHILD", (sys.executable, "-m", "rueda.errors"))
    (tmp_path / "random.py").write_text("raise SystemExit(1)")
    (tmp_path / "rueda.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert instruction_sets._try("", {**os.environ, "PYTHONPATH": ""}, (), time.monotonic() + 60) is True


GPUS = {  # variables, whether NVIDIA's driver is there, whether the workers compute on a GPU
    "no driver": ({}, False, False),
    "a driver": ({}, True, True),
    "cpu is asked for": ({"RUEDA_DEVICE": "cpu"}, True, False),
    "cuda is asked for": ({"RUEDA_DEVICE": "cuda"}, False, True),
    "none is visible": ({"CUDA_VISIBLE_DEVICES": ""}, True, False),
    "one is visible": ({"CUDA_VISIBLE_DEVICES": "0"}, True, True),
}


@pytest.mark.parametrize(("environ", "driver", "expected"), GPUS.values(), ids=GPUS)
def test_a_host_with_a_gpu(
    environ: dict[str, str], driver: bool, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_sets, "_NVIDIA", (str(tmp_path / "none"), str(tmp_path) if driver else "/nowhere"))
    assert instruction_sets.has_gpu(environ) is expected


@pytest.mark.parametrize("what", ["a file in the way", "torn", "another kind"])
def test_a_cache_that_is_of_no_use(what: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.be(flags=AMX, survives=("AVX2",))
    cache = machine.folder / "cache"
    if what == "a file in the way":
        cache.write_text("")
        monkeypatch.setattr("tempfile.tempdir", str(machine.folder))
    else:
        (cache / "instruction-sets").mkdir(parents=True)
        file = cache / "instruction-sets" / f"{instruction_sets._machine()}.json"
        file.write_text('{"": fal' if what == "torn" else "[1, 2]")
    for _ in range(2):
        machine.start_process()
        assert instruction_sets.limits(os.environ) == {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert len(machine.tried()) == len(instruction_sets.LIMITS)


def test_the_real_child_computes_under_each_limit_of_this_machine() -> None:
    children = [
        subprocess.Popen((*instruction_sets._CHILD, "bf16"), env={**os.environ, "ONEDNN_MAX_CPU_ISA": limit})
        for limit in ("AVX512_CORE_BF16", "AVX2")
    ]
    assert [child.wait(120) for child in children] == [0, 0]


LATE = """
import os, sys
import torch
from rueda.world import instruction_sets
instruction_sets.limits = lambda environ, precision, among: {"ONEDNN_MAX_CPU_ISA": "AVX2"}
if sys.argv[1] == "late":
    torch.nn.Conv2d(3, 8, 3)(torch.randn(1, 3, 8, 8))
try:
    instruction_sets.protect("bf16")
    print("limited", torch.ops.mkldnn._is_mkldnn_bf16_supported(), os.environ["ONEDNN_MAX_CPU_ISA"])
except Exception as error:
    print(type(error).__name__, error, "ONEDNN_MAX_CPU_ISA" in os.environ)
    instruction_sets.protect()
    instruction_sets.protect()
"""


def test_after_import_torch_is_early_enough_and_after_the_first_kernel_too_late() -> None:
    import torch

    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU, or its limit, has no AVX-512 that could be taken away")
    environ = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    early, late = (
        subprocess.run([sys.executable, "-c", LATE, when], env=environ, capture_output=True, text=True, check=True)
        for when in ("early", "late")
    )
    assert early.stdout == "limited False AVX2\n"
    assert early.stderr == f"rueda: {instruction_sets.told('AVX2')}\n"
    assert "WorldError" in late.stdout and "export ONEDNN_MAX_CPU_ISA=AVX2" in late.stdout
    assert late.stdout.endswith("False\n")
    assert late.stderr.count("\n") == 1 and "float32 is not affected" in late.stderr  # nobody asked for bf16


CUSTOM = """
from pathlib import Path
from rueda.world import instruction_sets
instruction_sets._CPUINFO = Path({cpuinfo!r})
instruction_sets._CHILD = {child!r}
"""
SCRIPT = """
import os, rueda
world = rueda.init()
print(world.rank, os.environ["ONEDNN_MAX_CPU_ISA"])
"""


@pytest.fixture
def faulting(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """All processes that this test starts are on a machine whose AMX faults."""
    machine.be(flags=AMX, survives=("AVX512_CORE_BF16", "AVX512_CORE", "AVX2"))
    (machine.folder / "site").mkdir()
    text = CUSTOM.format(cpuinfo=str(machine.folder / "cpuinfo"), child=machine.child)
    (machine.folder / "site" / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(machine.folder / "site"))
    settle_in(machine.folder, monkeypatch)
    return machine


def rueda(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rueda", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_workers_of_a_training_are_protected(faulting: Machine) -> None:
    words = ("--workers", "2", "--epochs", "1", "--run", "run", "--set", "precision=bf16", "--set", "batch=32")
    done = rueda("train", "clouds.py", *words)
    assert done.returncode == 0, done.stderr
    assert faulting.tried() == ["", "AVX512_CORE_BF16"]  # torch cannot verify AVX512_CORE_FP16
    assert done.stderr.count(instruction_sets.told("AVX512_CORE_BF16")) == 1
    about = json.loads(Path("run", "environment.json").read_text())
    assert about["machine"]["onednn_max_cpu_isa"] == "AVX512_CORE_BF16"


def test_a_training_in_float32_tries_nothing(machine: Machine) -> None:
    fit(tiny_task(), Recipe(batch=24, epochs=1), folder=machine.folder / "run", progress=False)
    about = json.loads((machine.folder / "run" / "environment.json").read_text())
    assert about["machine"]["onednn_max_cpu_isa"] is None
    assert machine.tried() == []


def test_workers_of_a_script_are_protected(faulting: Machine) -> None:
    Path("train.py").write_text(SCRIPT)
    done = rueda("run", "-np", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 0 AVX512_CORE_BF16", "[1] 1 AVX512_CORE_BF16"]
    assert done.stderr.count(instruction_sets.told("AVX512_CORE_BF16")) == 1
    assert faulting.tried() == ["", "AVX512_CORE_FP16", "AVX512_CORE_BF16"]  # once for all


def test_a_script_of_ones_own_is_protected(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.be(flags=AMX, survives=("AVX512_CORE_FP16", "AVX512_CORE_BF16"))
    monkeypatch.setattr(instruction_sets, "_exceeds", lambda limit, torch: False)  # other tests have used oneDNN
    init()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    assert capsys.readouterr().err == f"rueda: {instruction_sets.told('AVX512_CORE_BF16')}\n"
    init()
    assert capsys.readouterr().err == ""


def test_a_training_is_protected_before_its_model_is_built(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.be(flags=AMX, survives=("AVX512_CORE_BF16",))
    monkeypatch.setattr(instruction_sets, "_exceeds", lambda limit, torch: False)  # other tests have used oneDNN
    seen: list[str | None] = []

    def looks(factory: Callable[..., Any]) -> Callable[..., Any]:
        def look(*words: Any) -> Any:
            seen.append(os.environ.get("ONEDNN_MAX_CPU_ISA"))
            return factory(*words)

        return look

    task = tiny_task()
    task = replace(task, model=looks(task.model), train=looks(task.train))
    training(task, Recipe(batch=24, precision="bf16"), alone=True)
    assert seen == ["AVX512_CORE_BF16"] * 2


# A task's own code may compute in half precision by itself, whatever the recipe says.

OWN = """
import os
from pathlib import Path
from tinytask import tiny_task
Path(os.environ["SEEN"]).write_text(os.environ.get("ONEDNN_MAX_CPU_ISA", "none"))
task = tiny_task()
"""
KERAS = """
import os
from pathlib import Path
from rueda.tasks import KerasTask
Path(os.environ["SEEN"]).write_text(os.environ.get("ONEDNN_MAX_CPU_ISA", "none"))
task = KerasTask(name="keras", model=lambda: None, train=())
"""


@pytest.fixture
def faults(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """This process is on a machine whose AMX faults, and has not run oneDNN."""
    machine.be(flags=AMX, survives=("AVX512_CORE_BF16",))
    monkeypatch.setattr(instruction_sets, "_exceeds", lambda limit, torch: False)  # other tests have used oneDNN
    monkeypatch.setattr(instruction_sets, "_NVIDIA", ())
    monkeypatch.setenv("SEEN", str(machine.folder / "seen"))
    return machine


@pytest.mark.parametrize("text", [OWN, KERAS], ids=["torch", "Keras"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_task_file_is_executed_under_protection(
    text: str, device: str, faults: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUEDA_DEVICE", device)
    (faults.folder / "own.py").write_text(text)
    load_measurable(str(faults.folder / "own.py"))
    expected = "AVX512_CORE_BF16" if device == "cpu" else "none"  # on a GPU nothing is tried
    assert (faults.folder / "seen").read_text() == expected
    assert bool(faults.tried()) == (device == "cpu")


def noticing(seen: list[str | None]) -> Any:
    def step(model: Any, batch: Any) -> Any:
        raise AssertionError("nothing is trained here")

    def model() -> Any:
        seen.append(os.environ.get("ONEDNN_MAX_CPU_ISA"))
        return network()

    return replace(tiny_task(), model=model, metric=None, step=step)


def test_a_task_with_a_step_is_trained_under_protection(faults: Machine) -> None:
    seen: list[str | None] = []
    training(noticing(seen), Recipe(batch=24), alone=True)
    assert seen == ["AVX512_CORE_BF16"]


def test_a_task_with_a_step_is_examined_under_protection(faults: Machine) -> None:
    import torch

    seen: list[str | None] = []
    torch.save(network().state_dict(), faults.folder / "weights.pt")
    load_model(faults.folder / "weights.pt", task=noticing(seen))
    assert seen == ["AVX512_CORE_BF16"]


@pytest.mark.parametrize("driver", ["measure", "study", "forecast"])
def test_one_line_reports_the_limit_of_all_jobs(
    driver: str, faults: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Enough(Exception):
        pass

    def started(job: object, **options: object) -> None:
        raise Enough(os.environ.get("ONEDNN_MAX_CPU_ISA"))

    monkeypatch.setattr("rueda.jobs.run", started, raising=False)
    command: dict[str, Callable[[str], object]] = {
        "measure": lambda task: measure(task, workers=(2,)),
        "study": lambda task: study_techniques(task, workers=2),
        "forecast": measure_learning_curve,
    }
    with pytest.raises(Enough, match="AVX512_CORE_BF16"):
        command[driver]("own.py")
    assert capsys.readouterr().err == f"rueda: {instruction_sets.told('AVX512_CORE_BF16')}\n"
    with pytest.raises(Enough):
        command[driver]("linear")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_study_on_a_gpu_tries_nothing(device: str, faults: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUEDA_DEVICE", device)
    run = PlannedRun(name="row", seed=0, recipe=Recipe(precision="bf16"), folder=faults.folder)
    lines: list[str] = []
    planned_run._limit_instruction_sets([run], SimpleNamespace(say=lines.append))  # type: ignore[arg-type]
    assert bool(faults.tried()) == (device == "cpu") == bool(lines)


def test_autocast_refuses_half_precision_where_it_is_too_late(
    faults: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(instruction_sets, "_exceeds", lambda limit, torch: True)
    monkeypatch.setattr(torch.autocast, "__enter__", torch.autocast.__enter__)  # so that it is put back
    for _ in range(2):
        instruction_sets.protect()
        init()
    assert capsys.readouterr().err.count("torch.autocast will refuse half precision") == 1
    for region in (torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu")):
        with pytest.raises(WorldError, match=r"^this CPU advertises AMX.*export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"):
            region.__enter__()
    for region in (torch.autocast("cpu", torch.float16), torch.autocast("cpu", enabled=False)):
        with region:  # this CPU advertises AMX for bf16 only
            assert torch.is_autocast_enabled("cpu") == region._enabled
