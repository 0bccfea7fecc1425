"""What a recipe asks of a GPU: precision, TF32, cuDNN, buckets, and data sets read in advance."""

from __future__ import annotations

import multiprocessing
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from gpu.bench import on_impostor
from rueda.data import DatasetLoader
from rueda.errors import RecipeError, WorldError
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.train import numerics
from rueda.train.training import Training
from rueda.world import World
from rueda.world.device import choose_backend
from tinytask import network, parameters, tiny_task


def test_on_a_cpu_the_precision_is_float32_unless_a_recipe_says_otherwise() -> None:
    cpu = torch.device("cpu")
    assert numerics.settled(Recipe(), cpu).precision == "float32"
    assert numerics.settled(Recipe(precision="bf16"), cpu).precision == "bf16"
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    numerics.apply(Recipe(), cpu)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark) == before
    training = Training(tiny_task(), Recipe(batch=8), World())
    assert training.recipe.precision == "float32" and training.given_recipe.precision == "auto"
    assert not training.updater.remarks


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "float32"), ((8, 0), "bf16"), ((9, 0), "bf16")])
@on_impostor()
def test_auto_is_bf16_where_the_gpu_has_it_and_a_line_says_so(capability: tuple[int, int], precision: str) -> None:
    from rueda.world import current

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        training = Training(tiny_task(), Recipe(batch=8), current())
        training.step()
        explicit = Training(tiny_task(), Recipe(batch=8, precision="float32"), current())
    assert training.recipe.precision == precision and explicit.recipe.precision == "float32"
    lines = [f"precision {precision}, which this GPU computes faster; --set precision=float32 for full precision"]
    assert training.updater.remarks == (lines if precision == "bf16" else []) and not explicit.updater.remarks


@on_impostor()
def test_tf32_and_cudnn_follow_the_recipe() -> None:
    device = torch.device("cuda", 0)
    for flag in (False, True):
        numerics.apply(Recipe(tf32=flag, cudnn_benchmark=not flag), device)
        assert torch.get_float32_matmul_precision() == ("high" if flag else "highest")
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == (flag, not flag)


@on_impostor(workers=2)
def test_buckets_and_static_graph_reach_ddp() -> None:
    from rueda.world import current

    recipe = Recipe(batch=8, workers=2, bucket_megabytes=0.5, static_graph=True)
    training = Training(tiny_task(), recipe, current())
    training.step()
    training.step()
    ddp = training.updater._compute
    assert ddp.static_graph and ddp.bucket_bytes_cap == 1 << 19


class Noisy(Dataset[Any]):
    """Draws a random number for each example, from each of the three generators."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        drawn = torch.rand(8) + random.random() + float(np.random.rand())
        return drawn + index, index % 3


def noisy_task() -> Task:
    return Task(name="noisy", model=network, train=Noisy, test=Noisy, recipe=Recipe(batch=8, epochs=1))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
@on_impostor()
def test_a_data_set_read_in_advance_has_the_numbers_of_one_that_is_not() -> None:
    import warnings

    from gpu.recorder import Recorder
    from rueda.world import current

    warnings.filterwarnings("ignore", "This DataLoader will create 2 worker processes")  # where there is one core
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # may start processes
    multiprocessing.set_start_method("fork", force=True)  # the default of a script, but not of the harness
    found = {}
    for processes in (0, None):  # None: two on a GPU
        training = Training(noisy_task(), Recipe(batch=8, seed=3, loader_processes=processes), current())
        for step in range(12):  # an epoch has 8
            with Recorder() as record:
                training.step()
            assert step in (0, 8) or not record.waits, record.waits  # an epoch ends with a wait, for its time
        found[processes] = parameters(training.model).cpu()
        assert isinstance(training.loader, DatasetLoader)
        training.loader.close()
    assert torch.equal(found[0], found[None])
    host = Training(noisy_task(), Recipe(batch=8, seed=3), World())
    for _ in range(12):
        host.step()
    torch.testing.assert_close(parameters(host.model), found[0], rtol=1e-5, atol=1e-6)


def test_refusals() -> None:
    with pytest.raises(RecipeError, match="bucket_megabytes: expected a positive number"):
        Recipe(bucket_megabytes=0.0)
    with pytest.raises(RecipeError, match="loader_processes = -1"):
        Recipe(loader_processes=-1)


@pytest.mark.parametrize("wanted", ["gloo", "cpu:gloo,cuda:gloo", "GLOO"])
def test_rueda_backend_overrides_the_choice(wanted: str) -> None:
    assert choose_backend(torch.device("cuda"), {"RUEDA_BACKEND": wanted}) == wanted.lower()


def test_rueda_backend_must_be_known() -> None:
    assert choose_backend(torch.device("cuda"), {}) == "cpu:gloo,cuda:nccl"
    with pytest.raises(WorldError, match=r"RUEDA_BACKEND: expected one of .*gloo.*, got 'cuda:glue'"):
        choose_backend(torch.device("cpu"), {"RUEDA_BACKEND": "cuda:glue"})
