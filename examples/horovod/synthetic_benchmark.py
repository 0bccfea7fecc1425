"""Images a second on made-up data, as people measure it with Horovod: rueda run -np 2 python synthetic_benchmark.py"""

import argparse
import timeit

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim

parser = argparse.ArgumentParser(description="Horovod synthetic benchmark")
parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in half precision")
parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
parser.add_argument("--image-size", type=int, default=32)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--num-warmup-batches", type=int, default=2)
parser.add_argument("--num-batches-per-iter", type=int, default=5)
parser.add_argument("--num-iters", type=int, default=3)
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--use-adasum", action="store_true")


def network(width):
    """Four convolutions, each with batch normalisation, and a dense layer."""
    layers, channels = [], 3
    for factor in (1, 2, 4, 8):
        layers += [
            nn.Conv2d(channels, width * factor, 3, stride=2, padding=1),
            nn.BatchNorm2d(width * factor),
            nn.ReLU(),
        ]
        channels = width * factor
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def log(text, nl=True):
    """Print on rank 0 alone."""
    if hvd.rank() == 0:
        print(text, end="\n" if nl else "", flush=True)


def main(args):
    """Measure."""
    hvd.init()
    cuda = not args.no_cuda and torch.cuda.is_available()
    device = "GPU" if cuda else "CPU"
    if cuda:
        torch.cuda.set_device(hvd.local_rank())
        torch.backends.cudnn.benchmark = True

    model = network(args.width)
    lr_scaler = hvd.size() if not args.use_adasum else 1
    if cuda:
        model.cuda()
    optimizer = optim.SGD(model.parameters(), lr=0.01 * lr_scaler)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    data = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    target = torch.randint(1000, (args.batch_size,))
    if cuda:
        data, target = data.cuda(), target.cuda()

    def benchmark_step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()

    log(f"Batch size: {args.batch_size}")
    log(f"Number of {device}s: {hvd.size()}")
    log("Running warmup...")
    timeit.timeit(benchmark_step, number=args.num_warmup_batches)
    log("Running benchmark...")
    img_secs = []
    for x in range(args.num_iters):
        time = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
        img_sec = args.batch_size * args.num_batches_per_iter / time
        log(f"Iter #{x}: {img_sec:.1f} img/sec per {device}")
        img_secs.append(img_sec)
    img_sec_mean, img_sec_conf = np.mean(img_secs), 1.96 * np.std(img_secs)
    log(f"Img/sec per {device}: {img_sec_mean:.1f} +-{img_sec_conf:.1f}")
    total, spread = hvd.size() * img_sec_mean, hvd.size() * img_sec_conf
    log(f"Total img/sec on {hvd.size()} {device}(s): {total:.1f} +-{spread:.1f}")


if __name__ == "__main__":
    main(parser.parse_args())
