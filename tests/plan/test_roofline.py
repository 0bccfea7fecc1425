"""The roofline of a device that was not measured: against arithmetic, never exceeded, and against published speeds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from plan.profiles import profile, step
from rueda.errors import ProfileError
from rueda.plan import Cluster, Link, load_cluster, make_plan, predict
from rueda.plan.cluster_files import read_cluster
from rueda.plan.compute import compute_time, launch_seconds, smallest_batch
from rueda.plan.prediction import basis
from rueda.plan.published import LECTURE_CNN, RESNET_50, WIDE_RESNET, published_speeds
from rueda.plan.roofline import REACHED_BANDWIDTH, REACHED_FLOPS, DevicePeaks, roofline_of
from rueda.records import Recipe
from rueda.records.profile import StepWork
from rueda.tasks.loading import load_task
from rueda.train.counting import count_backward, count_pass
from rueda.train.utilisation import peak_flops

WORK = StepWork(flops=1e9, saved_bytes=1e6, update_bytes=12e6)
PEAKS = DevicePeaks(memory_bandwidth=1e12, float32=10e12, tf32=80e12, bf16=160e12)
MEASURED = profile([step(16, 0.010), step(64, 0.022), step(256, 0.070)], tensors=10, work=WORK)
CARD = Cluster(
    name="cards", device="card", devices_per_node=8, jitter=0.0, inside=Link(latency=0.0, bandwidth=1e11), peaks=PEAKS,
)  # fmt: skip


def plain(precision: str = "float32", *, tf32: bool = False, **more: Any) -> Any:
    return replace(MEASURED, recipe=Recipe(batch=64, precision=precision, tf32=tf32).to_toml(), **more)


@pytest.mark.parametrize(
    ("precision", "tf32", "peak", "saved"),
    [
        ("float32", False, 10e12, 1e6),
        ("float32", True, 80e12, 1e6),
        ("auto", True, 160e12, 0.5e6),
        ("bf16", False, 160e12, 0.5e6),
        ("fp16", False, 10e12, 1e6),  # no tensor cores for it: float32
        ("float64", True, None, 1e6),  # not known: only the bytes count
    ],
)
def test_the_least_time_by_hand(precision: str, tf32: bool, peak: float | None, saved: float) -> None:
    roofline = roofline_of(plain(precision, tf32=tf32), "card", PEAKS)
    assert roofline is not None
    for batch in (1, 64, 4096):
        flops = 0.0 if peak is None else batch * 1e9 / peak
        moved = 2 * (batch * saved + 12e6) / 1e12
        assert roofline.least(batch) == pytest.approx(max(flops, moved))
        assert roofline.expected(batch) == pytest.approx(max(flops / REACHED_FLOPS, moved / REACHED_BANDWIDTH))


def test_a_larger_batch_takes_longer_and_has_more_images_per_second() -> None:
    roofline = roofline_of(plain(), "card", PEAKS)
    assert roofline is not None
    times = [compute_time(plain(), 2**power, roofline=roofline).seconds for power in range(14)]
    assert times == sorted(times)
    rates = [2**power / seconds for power, seconds in enumerate(times)]
    assert all(later >= earlier * (1 - 1e-12) for earlier, later in pairwise(rates))


@pytest.mark.parametrize("speed", [2.0, 40.0, 1e3, 1e9])
def test_no_speed_promises_more_than_the_roofline(speed: float) -> None:
    """1 Gflop an image at 10 Tflop/s: at most 10,000 images/s on a worker, whatever the speed."""
    for batch in (1, 4, 16, 64, 256, 1024, 4096):
        for workers in (1, 2, 8):
            row = predict(plain(), replace(CARD, speed=speed), workers=workers, local_batch=batch)
            assert row.images_per_second <= workers * 10_000 * (1 + 1e-12)
            assert row.compute_seconds >= launch_seconds(MEASURED)
    row = predict(plain(), replace(CARD, speed=speed), workers=1, local_batch=256)
    warned = [
        text for text in row.warnings if "the roofline of the card allows at most 10,000 images/s of a worker" in text
    ]
    assert len(warned) == (256 / 0.070 * speed > 10_000)
    assert all(f"a speed of {speed:g} would promise more" in text for text in warned)
    # Without a roofline, as of an older profile, only the launches bound it.
    older = predict(plain(work=None), replace(CARD, speed=speed), workers=1, local_batch=256)
    assert older.compute_seconds == pytest.approx(max(0.070 / speed, 0.75e-3))


def test_without_a_speed_the_roofline_alone_predicts() -> None:
    row = predict(plain(), CARD, workers=1, local_batch=64)
    assert row.compute_seconds == pytest.approx(64e9 / (0.57 * 10e12))
    loud, most = row.warnings
    assert loud.startswith("EXTRAPOLATED: nothing was measured on the card; times are those of its roofline")
    assert "57 % of its peak in float32 and 8 % of its memory bandwidth" in loud
    assert most == "the roofline of the card allows at most 10,000 images/s of a worker at local batch 64"
    above = predict(plain(), CARD, workers=1, local_batch=1024)  # which no profile has to hold
    assert not any("no profile above" in text for text in above.warnings)


def test_the_smallest_sensible_batch_is_where_the_device_takes_longer_than_the_launches() -> None:
    """0.75 ms of launches: 0.0001 s / 0.57 an image in float32, so from 4.3 images on."""
    float32 = roofline_of(plain(), "card", PEAKS)
    assert smallest_batch(plain(), None, float32) == 8
    small = predict(plain(), CARD, workers=1, local_batch=4)
    assert small.compute_seconds == pytest.approx(0.75e-3)
    assert any("0.75 ms a step: a smaller one is no faster" in text for text in small.warnings)
    assert not any("launches" in text for text in predict(plain(), CARD, workers=1, local_batch=8).warnings)


BASES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("the counted work and the peaks", {}, {}, "roofline"),
    ("a speed", {}, {"speed": 40.0}, "speed"),
    ("equally fast", {}, {"speed": 1.0}, "measured"),
    ("an older profile", {"work": None}, {}, "assumed"),
    ("no peaks", {}, {"peaks": None}, "assumed"),
    ("measured on the same device", {"device": "NVIDIA Card-SXM4"}, {}, "measured"),
    ("a profile of its own", {}, {"profile": MEASURED}, "measured"),
    ("the profiled machine", {}, {"is_profiled": True}, "measured"),
]


@pytest.mark.parametrize(("name", "of_profile", "of_cluster", "expected"), BASES)
def test_what_the_times_rest_on(
    name: str, of_profile: dict[str, Any], of_cluster: dict[str, Any], expected: str
) -> None:
    measured, cluster = plain(**of_profile), replace(CARD, **of_cluster)
    assert basis(measured, cluster) == expected
    plan = make_plan(measured, cluster, workers=[1, 2])
    loud = [text for text in plan.warnings if text.startswith("EXTRAPOLATED")]
    assert bool(loud) == (expected != "measured")
    if expected == "assumed":
        assert "as if both were equally fast" in loud[0]
        assert ("measure again with `rueda measure`" if cluster.peaks else "[device.peaks]") in loud[0]
        assert predict(measured, cluster, workers=1, local_batch=64).step_seconds == 0.022
    assert any("The speed of the card" in text for text in plan.unknown) == (expected == "assumed")


PUBLISHED_BY = {"V100": "Tesla V100-SXM2-16GB", "A100": "NVIDIA A100-SXM4-40GB", "H100": "NVIDIA H100 80GB HBM3"}


@pytest.mark.parametrize("name", ["dgx-1-v100", "dgx-a100", "dgx-h100"])
def test_the_peaks_of_a_cluster_are_those_of_the_utilisation(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.peaks is not None and any("peaks:" in source for source in cluster.sources)
    gpu = PUBLISHED_BY[cluster.device]
    for precision in ("float32", "float64", "bf16", "fp16"):
        known = peak_flops(gpu, Recipe(precision=precision, tf32=False))
        assert getattr(cluster.peaks, precision) == (None if known is None else pytest.approx(known))
    if cluster.peaks.tf32 is not None:
        assert cluster.peaks.tf32 == pytest.approx(peak_flops(gpu, Recipe(precision="float32")))


def test_peaks_of_a_file() -> None:
    text = "devices_per_node = 1\nmax_nodes = 1\n[device]\nname = 'card'\n[device.peaks]\n"
    read = read_cluster(text + "memory_bandwidth = 1e12\nfloat32 = 1e13", name="own", source="own.toml")
    assert read.peaks == DevicePeaks(memory_bandwidth=1e12, float32=1e13)
    for wrong, message in (
        ("float32 = 1e13", "memory_bandwidth, which is missing"),
        ("memory_bandwidth = 0\nfloat32 = 1e13", "memory_bandwidth: expected more than 0 and finite, got 0"),
        ("memory_bandwidth = 1e12\nfloat33 = 1", r"\[device.peaks\]: expected one of .*float32.* got 'float33'"),
        ("memory_bandwidth = 'fast'\nfloat32 = 1e13", "expected float, got 'fast'"),
    ):
        with pytest.raises(ProfileError, match=message) as failure:
            read_cluster(text + wrong, name="own", source="own.toml")
        assert str(failure.value).startswith("own.toml") and "\n" not in str(failure.value)


# Published speeds.


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        layers: list[nn.Module] = []
        for before, after, kernel, by in sizes:
            layers += [
                nn.Conv2d(before, after, kernel, by, kernel // 2, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(True),
            ]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Sequential(
            *([] if inputs == 4 * width else [nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)]),
            *([] if inputs == 4 * width else [nn.BatchNorm2d(4 * width)]),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.body(x) + self.shortcut(x))


def resnet_50() -> nn.Module:
    """He et al. 2015, with the stride in the 3 x 3 convolution as in v1.5."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def test_the_work_of_resnet_50_is_as_counted() -> None:
    with torch.device("meta"):
        model, inputs, targets = resnet_50(), torch.empty(8, 3, 224, 224), torch.zeros(8, dtype=torch.int64)
    own = [*model.parameters(), *model.buffers()]
    counted = count_backward(lambda: nn.functional.cross_entropy(model(inputs), targets), own)
    assert counted.flops / 8 == RESNET_50.flops
    assert counted.saved_bytes / 8 == pytest.approx(RESNET_50.saved_bytes, rel=1e-3)
    assert RESNET_50.update_bytes == 3 * 4 * sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize(
    ("task", "model", "shape", "work"),
    [
        ("fashion-mnist-wrn", {"width": 10}, (1, 28, 28), WIDE_RESNET),
        ("cifar10-cnn", {}, (3, 32, 32), LECTURE_CNN),
    ],
)
def test_the_work_of_the_courses_models_is_as_counted(
    task: str, model: dict[str, Any], shape: tuple[int, ...], work: StepWork
) -> None:
    found = load_task(task)
    network = found.build(found.recipe.change(model=model))
    counted = count_pass(found, network, (torch.empty(8, *shape), torch.zeros(8, dtype=torch.int64)))
    assert counted.flops / 8 == work.flops
    assert counted.saved_bytes / 8 == pytest.approx(work.saved_bytes, rel=1e-3)


def test_no_published_speed_exceeds_its_roofline() -> None:
    rows = published_speeds()
    assert all(row.published < row.most and row.expected < row.most for row in rows)
    by_name = {row.name: row for row in rows}
    for name in ("ResNet-50, V100, float32", "ResNet-50, A100, TF32"):  # those behind the two fractions
        assert by_name[name].expected == pytest.approx(by_name[name].published, rel=0.02)
