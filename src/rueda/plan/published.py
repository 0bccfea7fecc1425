"""Published tables, predicted: scaling from single-device speeds, and those speeds themselves by the roofline.

One model predicts all of them.

The model's general constants (jitter between devices, interference of hidden all-reduces, latencies of a hop,
efficiencies of links) come from other sources than these rows; ``docs/plan.md`` lists them, and what each row assumes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rueda.plan.cluster import Cluster, Link
from rueda.plan.cluster_files import load_cluster
from rueda.plan.collectives import all_reduce
from rueda.plan.compute import compute_time
from rueda.plan.prediction import predict
from rueda.plan.roofline import DevicePeaks, roofline_of
from rueda.records.profile import Profile, StepTime, StepWork
from rueda.records.recipe.recipe import Recipe

IMAGENET = 1_281_167
EDR = 12.5e9
"""bytes per second of a 100 Gb/s port"""


def single_device(
    task: str, batch: int, images_per_second: float, parameters: int, *, buckets: int = 1, examples: int = IMAGENET
) -> Profile:
    """Return a profile of one device of which only the throughput is known; two thirds of a step are backward pass."""
    seconds = batch / images_per_second
    step = StepTime(
        batch=batch, seconds=seconds, spread=0.0, repeats=1, data=0.0, forward=seconds / 3, backward=2 * seconds / 3,
        optimizer=0.0,
    )  # fmt: skip
    return Profile(
        task=task, device="published", threads=1, precision="float32", parameters=parameters,
        gradient_bytes=4 * parameters, examples=examples, recipe=Recipe(batch=batch).to_toml(), steps=(step,),
        buckets=buckets,
    )  # fmt: skip


def small_cnn() -> tuple[Profile, Cluster]:
    """Return a small CNN on a DGX-1 under Horovod, which before 0.21 looked for gradients every 5 ms."""
    return (
        single_device("small CNN", 2048, 71_149, 482_442, examples=60_000),
        replace(load_cluster("dgx-1-v100"), cycle=5e-3),
    )


def resnet_50() -> tuple[Profile, Cluster]:
    """Return ResNet-50 as Goyal et al. 2017 (1706.02677) train it.

    90 epochs take 29 h on one server of 8 P100, with an all-reduce for each of the 161 tensors; the servers have NVLink
    1 (4 links of 20 GB/s) and one 50 Gb/s Ethernet port over TCP. Between servers they use halving and doubling, three
    times as fast as a ring on their 32 servers (the model says 3.9 times, for a tensor of average size).
    """
    servers = Cluster(
        name="big-basin",
        devices_per_node=8,
        inside=Link(latency=3.4e-6, bandwidth=80e9, efficiency=0.85),
        between=Link(latency=30e-6, bandwidth=6.25e9, efficiency=0.8),
        library="caffe2",
    )
    return single_device("ResNet-50", 32, 90 * IMAGENET / (29 * 3600) / 8, 25_557_032, buckets=161), servers


def alexnet() -> tuple[Profile, Cluster]:
    """Return AlexNet in one tower, Krizhevsky 2014 (1404.5997).

    90 epochs take 98.05 h on one K20 at batch 128; the convolutions (2.47 M parameters) are data-parallel; PCIe 2.0.
    """
    server = Cluster(
        name="k20", devices_per_node=8, max_nodes=1, inside=Link(latency=5.7e-6, bandwidth=8e9, efficiency=0.75)
    )
    return single_device("AlexNet", 128, 90 * IMAGENET / (98.05 * 3600), 2_469_696, buckets=5), server


def deeplab() -> tuple[Profile, Cluster]:
    """Return DeepLabv3+, Kurth et al. 2018 (1810.01993), on Summit.

    0.87 samples/s in FP32 at batch 1 on a V100; 6 V100 a node on NVLink 2 (3 links of 25 GB/s between neighbours), two
    EDR ports; Horovod with MPI between the nodes.
    """
    summit = Cluster(
        name="summit",
        devices_per_node=6,
        inside=Link(latency=3.4e-6, bandwidth=75e9, efficiency=0.85),
        between=Link(latency=14e-6, bandwidth=2 * EDR, efficiency=0.9),
        library="mpi",
    )
    return single_device("DeepLabv3+", 1, 0.87, 43_700_000, buckets=3), summit


def _efficiency(case: Callable[[], tuple[Profile, Cluster]], workers: int, against: int = 1) -> float:
    profile, cluster = case()
    batch = profile.steps[0].batch
    found = [predict(profile, cluster, workers=count, local_batch=batch).efficiency for count in (workers, against)]
    return found[0] / found[1]


def _activations_seconds(workers: int, link: Link, cluster: Cluster) -> float:
    """Return the seconds in which AlexNet's fully connected layers, split between the workers, exchange activations.

    Each worker sends S bytes to all others in the forward pass and gets their gradients in the backward pass. 9,216
    activations are sent by one worker after the other: 2 n (n - 1) (latency + S / bandwidth), since each turn is as
    slow as the link of the one sender. 4,096 + 4,096 + 1,000 are sent by all at once: an all-gather and a
    reduce-scatter, which are the two halves of an all-reduce of n S bytes.
    """
    in_turns, at_once = 128 * 4 * 9216, 128 * 4 * (4096 + 4096 + 1000)
    turns = 2 * workers * (workers - 1) * (link.latency + in_turns / link.usable)
    return turns + all_reduce(workers * at_once, workers, cluster)


def _alexnet_efficiency(workers: int) -> float:
    """Add the exchange of activations, which nothing hides, to the predicted step."""
    profile, cluster = alexnet()
    found = predict(profile, cluster, workers=workers, local_batch=128)
    longer = found.step_seconds + _activations_seconds(workers, cluster.link("inside"), cluster)
    return found.efficiency * found.step_seconds / longer


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A published scaling efficiency, and the one that the model predicts."""

    name: str
    workers: int
    published: float
    predicted: float


def published_rows() -> list[PublishedRow]:
    """Predict every row.

    >>> row = published_rows()[0]
    >>> row.name, row.published, round(row.predicted, 3)
    ('small CNN, 2 V100', 0.88, 0.912)
    """
    return [
        PublishedRow(name="small CNN, 2 V100", workers=2, published=0.88, predicted=_efficiency(small_cnn, 2)),
        PublishedRow(name="small CNN, 4 V100", workers=4, published=0.89, predicted=_efficiency(small_cnn, 4)),
        PublishedRow(name="small CNN, 8 V100", workers=8, published=0.86, predicted=_efficiency(small_cnn, 8)),
        PublishedRow(
            name="ResNet-50, 256 P100 against 8", workers=256, published=0.90, predicted=_efficiency(resnet_50, 256, 8)
        ),
        PublishedRow(name="AlexNet, 2 K20", workers=2, published=1.95 / 2, predicted=_alexnet_efficiency(2)),
        PublishedRow(name="AlexNet, 4 K20", workers=4, published=3.74 / 4, predicted=_alexnet_efficiency(4)),
        PublishedRow(name="AlexNet, 8 K20", workers=8, published=6.25 / 8, predicted=_alexnet_efficiency(8)),
        PublishedRow(
            name="DeepLabv3+, 27,360 V100", workers=27_360, published=0.907, predicted=_efficiency(deeplab, 27_360)
        ),
    ]


# Single devices, by the roofline.

WIDE_RESNET = StepWork(flops=11_079_350_784, saved_bytes=11_208_176.0, update_bytes=3 * 4 * 17_116_346)
"""``fashion-mnist-wrn`` with ``model.width=10``, counted by ``rueda measure``; SGD with momentum"""
LECTURE_CNN = StepWork(flops=67_608_576, saved_bytes=248_112.0, update_bytes=4 * 4 * 482_442 + 4 * 20)
"""``cifar10-cnn``, counted by ``rueda measure``; Adam"""
RESNET_50 = StepWork(flops=24_299_077_632, saved_bytes=85_916_608.0, update_bytes=3 * 4 * 25_557_032)
"""ResNet-50 at 224 x 224 pixels, counted in the same way; SGD with momentum"""


@dataclass(frozen=True, kw_only=True)
class PublishedSpeed:
    """A published throughput of one device, and the expected and the largest one by its roofline, in images/s."""

    name: str
    batch: int
    published: float
    expected: float
    most: float


def _speed(
    name: str, work: StepWork, tensors: int, peaks: DevicePeaks | None, batch: int, published: float, precision: str
) -> PublishedSpeed:
    profile = replace(
        single_device(name, batch, published, 1), work=work, tensors=tensors, device="cpu",
        recipe=Recipe(batch=batch, precision=precision).to_toml(),
    )  # fmt: skip
    roofline = roofline_of(profile, name, peaks)
    expected, most = (compute_time(profile, batch, roofline=roofline, speed=speed).seconds for speed in (None, 1e9))
    return PublishedSpeed(name=name, batch=batch, published=published, expected=batch / expected, most=batch / most)


def published_speeds() -> list[PublishedSpeed]:
    """Predict the published speeds of single devices; the two of ResNet-50 in 32 bits are those behind the fractions.

    The Wide ResNet and the two CNNs are from a course on one V100 in float32; ResNet-50 is that of NVIDIA's
    DeepLearningExamples for PyTorch, whose batch, 256 (128 in float32 on 16 GB), hardly matters.

    >>> row = published_speeds()[7]
    >>> row.batch, row.published, round(row.expected), round(row.most)
    (700, 683, 808, 1417)
    """
    v100, a100 = load_cluster("dgx-1-v100").peaks, load_cluster("dgx-a100").peaks
    assert a100 is not None
    a100 = replace(a100, memory_bandwidth=2.039e12)  # of the one with 80 GB
    wide = {8: 322, 16: 485, 32: 575, 64: 628, 128: 652, 256: 657, 512: 680, 700: 683}
    return [
        *(_speed("Wide ResNet, V100", WIDE_RESNET, 44, v100, batch, speed, "float32") for batch, speed in wide.items()),
        _speed("lecture CNN, V100", LECTURE_CNN, 20, v100, 512, 37_500, "float32"),
        _speed("small CNN, V100", LECTURE_CNN, 20, v100, 2048, 71_149, "float32"),
        _speed("ResNet-50, V100, float32", RESNET_50, 161, v100, 128, 367, "float32"),
        _speed("ResNet-50, V100, fp16", RESNET_50, 161, v100, 256, 1200, "fp16"),
        _speed("ResNet-50, A100, TF32", RESNET_50, 161, a100, 256, 938, "float32"),
        _speed("ResNet-50, A100, fp16", RESNET_50, 161, a100, 256, 2470, "fp16"),
    ]
