"""Which device a worker takes: Slurm's one GPU a rank, adopted process groups, jobs of a study, Macs, XPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import rueda
from gpu.bench import on_impostor
from rueda.errors import WorldError
from rueda.records import Recipe
from rueda.world.identity import Identity
from tinytask import clouds, network, parameters, tiny_task


@on_impostor()
def test_one_visible_gpu_for_each_rank() -> None:
    import torch.distributed as dist

    from rueda.world.device import choose_device, claim_device

    def properties(uuid: str, name: str = "Impostor") -> SimpleNamespace:
        return SimpleNamespace(name=name, uuid=uuid)

    ranks = [Identity(rank=rank, size=4, local_rank=rank, local_size=4) for rank in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        for num_visible, expected in ((8, [0, 1, 2, 3]), (1, [0, 0, 0, 0]), (2, [0, 1, 0, 1])):
            patch.setattr(torch.cuda, "device_count", lambda count=num_visible: count)
            assert [choose_device(rank).index for rank in ranks] == expected
            assert torch.cuda.current_device() == expected[-1]
        device, store = torch.device("cuda", 0), dist.HashStore()
        for rank in ranks:  # as Slurm and MIG do it: number 0 is another GPU for each
            patch.setattr(torch.cuda, "get_device_properties", lambda _, rank=rank: properties(f"GPU-{rank.rank}"))
            claim_device(store, rank, device)
        patch.setattr(torch.cuda, "get_device_properties", lambda _: properties("GPU-0"))
        claim_device(store, ranks[0], device)
        with pytest.raises(WorldError, match=r"ranks 0 and 3 have the same GPU .* start at most 2 workers here"):
            claim_device(store, ranks[3], device)
        patch.setattr(torch.cuda, "get_device_properties", lambda _: properties("GPU-0", "A100 MIG 1g.5gb"))
        claim_device(store, ranks[3], device)
        patch.setattr(torch.cuda, "device_count", lambda: 0)
        with pytest.raises(WorldError, match="shows no such device; set RUEDA_DEVICE=cpu"):
            choose_device(ranks[0], "cuda")
        with pytest.raises(WorldError, match="expected cpu, cuda, xpu or mps, got 'tpu'"):
            choose_device(ranks[0], "tpu")
    torch.cuda.set_device(0)


@on_impostor()
def test_an_adopted_process_group_keeps_its_device() -> None:
    import torch.distributed as dist

    from gpu.solo import solo
    from rueda.world import finish, init
    from rueda.world.life import open_world

    finish()
    try:
        for rank, selected in ((1, 1), (3, 2), (0, 0)):
            torch.cuda.set_device(selected)
            with solo(rank=rank, size=8, tape=[]):
                world = open_world()
                assert (world.rank, world.size, world.device) == (rank, 8, torch.device("cuda", selected))
                assert torch.cuda.current_device() == selected
                finish()
        torch.cuda.set_device(0)
        with solo(rank=1, size=8, tape=[]), pytest.MonkeyPatch.context() as patch:  # bound at init_process_group
            patch.setattr(dist.distributed_c10d._get_default_group(), "bound_device_id", torch.device("cuda", 5))
            assert open_world().device == torch.device("cuda", 5)
            finish()
    finally:
        torch.cuda.set_device(0)
        init(seed=0)


@on_impostor()
def test_jobs_that_run_at_the_same_time_take_different_gpus() -> None:
    from rueda.world.device import choose_device

    with pytest.MonkeyPatch.context() as patch:
        for slot in (3, 9, 0):
            patch.setenv("RUEDA_JOB_SLOT", str(slot))
            assert choose_device(Identity()) == torch.device("cuda", slot % 8)


@on_impostor("mps")
def test_a_mac_trains_evaluates_rehearses_and_examines_without_float64() -> None:
    from rueda.examine.landscape.directions import cosine, norm
    from rueda.examine.landscape.interpolation import blend
    from rueda.examine.objective.objective import Objective
    from rueda.world import current

    assert current().device == torch.device("mps")
    with pytest.raises(TypeError, match="float64"):
        torch.ones(2, device="mps").double()
    with pytest.raises(TypeError, match="float64"):  # the conversion would happen on the device
        torch.ones(2, device="mps").to("cpu", torch.float64)
    model = {"dropout": 0.2, "batch_norm": True}
    base = Recipe(batch=8, epochs=2, rate=0.05, model=model, recalibrate="always", log_every=4)
    table = {
        "sgd": base,
        "noise scale": base.change(noise_scale_every=1, noise_scale_groups=True, accumulate=2),
        "ghost": base.change(ghost_batch=4),
        "synchronised": base.change(sync_batch_norm=True),
        "noise": base.change(gradient_noise=1.0, additive_noise=0.01, clip=1.0),
        "adascale": base.change(adascale=True),
        **{name: base.change(optimizer=name, rate=0.01) for name in ("adamw", "lars", "larc", "lamb", "novograd")},
    }
    for name, recipe in table.items():
        result = rueda.fit(tiny_task(120, 61), recipe, progress=False)
        assert result.row is not None and result.row.test_accuracy is not None, name
        assert next(result.model.parameters()).device.type == "mps"
    assert rueda.fit(tiny_task(120, 61), base.change(workers=3), rehearse=True, progress=False).row is not None

    images = rueda.Arrays(torch.rand(40, 1, 8, 8), torch.randint(0, 3, (40,)))
    convolution = rueda.Task(
        name="images",
        model=lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        train=lambda: images,
        test=lambda: images,
        recipe=Recipe(batch=8, epochs=1),
    )
    assert rueda.fit(convolution, progress=False).row is not None

    data = clouds(30, 1)
    trained = network().to("mps")
    with Objective(trained, nn.CrossEntropyLoss(reduction="none"), data.inputs, data.targets) as objective:
        assert objective.device.type == "cpu" and objective.value() > 0  # curvature needs float64
    weights = [parameter.detach() for parameter in trained.parameters()]
    assert norm(weights) > 0 and cosine(weights, weights) == pytest.approx(1.0)
    assert blend(weights[0], weights[0], 0.5).dtype == torch.float64


@on_impostor("xpu")
def test_an_xpu_is_taken_and_trains() -> None:
    from rueda.world import current
    from rueda.world.device import choose_backend, float64_device

    device = current().device
    assert device == torch.device("xpu", 0) and choose_backend(device) == "cpu:gloo,xpu:xccl"
    assert float64_device(device) == device
    found = [
        parameters(rueda.fit(tiny_task(120, 61), Recipe(batch=8, epochs=1, precision=precision), progress=False).model)
        for precision in ("float32", "float64")
    ]
    assert found[0].device == device and torch.allclose(*(one.double().cpu() for one in found), atol=1e-4)
    assert rueda.fit(tiny_task(120, 61), Recipe(batch=8, epochs=1, workers=2, model={"dropout": 0.2}), rehearse=True,
                     progress=False).row is not None  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:  # such as an Arc A770
        patch.setattr(torch.xpu, "get_device_properties", lambda _: SimpleNamespace(has_fp64=False))
        assert float64_device(device) == torch.device("cpu")
