"""A ResNet on a folder of pictures, as people write it for Horovod: warm-up, gradient accumulation, checkpoints.

``rueda run -np 1 python imagenet.py --make-data data`` writes a tiny folder of .ppm pictures; then
``rueda run -np 2 python imagenet.py --train-dir data/train --val-dir data/val``.
"""

import argparse
import math
import os
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="ResNet on an image folder with Horovod")
parser.add_argument("--train-dir", default="data/train")
parser.add_argument("--val-dir", default="data/val")
parser.add_argument("--make-data", metavar="DIR", help="write a tiny image folder, and leave")
parser.add_argument("--checkpoint-format", default="checkpoint-{epoch}.pt")
parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in half precision")
parser.add_argument("--batches-per-allreduce", type=int, default=1, help="batches between two exchanges")
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--val-batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--base-lr", type=float, default=0.02, help="for one worker")
parser.add_argument("--warmup-epochs", type=float, default=1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=5e-5)
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--seed", type=int, default=42)


class ImageFolder(Dataset):
    """Pictures sorted into a folder a class, in the binary PPM format, which needs no library to be read."""

    def __init__(self, root):
        self.classes = sorted(folder.name for folder in Path(root).iterdir() if folder.is_dir())
        self.samples = [
            (file, label) for label, name in enumerate(self.classes) for file in sorted(Path(root, name).glob("*.ppm"))
        ]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        file, label = self.samples[index]
        magic, width, height, _, pixels = file.read_bytes().split(maxsplit=4)
        assert magic == b"P6", f"{file} is no binary PPM"
        image = np.frombuffer(pixels, np.uint8).reshape(int(height), int(width), 3)
        return torch.from_numpy(image.transpose(2, 0, 1).copy()).float() / 255 - 0.5, label


def make_data(root, classes=4, images=16, size=32):
    """Write train and val: stripes of a direction and colour of their own for each class, in noise."""
    random = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(size), np.arange(size)))
    for part in ("train", "val"):
        for label in range(classes):
            folder = Path(root, part, f"class-{label}")
            folder.mkdir(parents=True, exist_ok=True)
            angle = math.pi * label / classes
            for number in range(images):
                phase = random.uniform(0, 6)
                wave = np.sin(0.8 * (grid[0] * math.cos(angle) + grid[1] * math.sin(angle)) + phase)
                picture = 128 + 60 * wave[..., None] * (1 + np.eye(3)[label % 3]) / 2
                picture = np.clip(picture + random.normal(0, 20, (size, size, 3)), 0, 255).astype(np.uint8)
                (folder / f"{number:03d}.ppm").write_bytes(b"P6 %d %d 255\n" % (size, size) + picture.tobytes())


class Block(nn.Module):
    """Two convolutions and the way round them."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.way = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        """Add the two ways."""
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.way(x))


def resnet(classes):
    """Make a ResNet of three blocks."""
    return nn.Sequential(
        Block(3, 16, 2),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


class Metric:
    """The average of a number over all workers."""

    def __init__(self, name):
        self.name, self.sum, self.n = name, torch.tensor(0.0), torch.tensor(0.0)

    def update(self, val):
        """Take one more value of this worker."""
        self.sum += hvd.allreduce(val.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self):
        """The average so far."""
        return self.sum / self.n


def accuracy(output, target):
    """Give the share of right answers."""
    return (output.argmax(1) == target).float().mean()


def main(args):
    """Train, validate, save; resume from the last checkpoint if there is one."""
    if args.make_data:
        make_data(args.make_data)
        return
    hvd.init()
    torch.manual_seed(args.seed)
    cuda = not args.no_cuda and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(hvd.local_rank())
        torch.cuda.manual_seed(args.seed)
    allreduce_batch_size = args.batch_size * args.batches_per_allreduce

    # Rank 0 looks for a checkpoint and tells the others, who may not see its disk.
    resume_from_epoch = 0
    for try_epoch in range(args.epochs, 0, -1):
        if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
            resume_from_epoch = try_epoch
            break
    resume_from_epoch = hvd.broadcast(torch.tensor(resume_from_epoch), root_rank=0, name="resume_from_epoch").item()
    verbose = hvd.rank() == 0

    train_dataset, val_dataset = ImageFolder(args.train_dir), ImageFolder(args.val_dir)
    train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_dataset, batch_size=allreduce_batch_size, sampler=train_sampler)
    val_sampler = DistributedSampler(val_dataset, num_replicas=hvd.size(), rank=hvd.rank())
    val_loader = DataLoader(val_dataset, batch_size=args.val_batch_size, sampler=val_sampler)

    model = resnet(len(train_dataset.classes))
    lr_scaler = args.batches_per_allreduce * (1 if args.use_adasum else hvd.size())
    if cuda:
        model.cuda()
    optimizer = optim.SGD(model.parameters(), lr=args.base_lr * lr_scaler, momentum=args.momentum, weight_decay=args.wd)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    if resume_from_epoch > 0 and hvd.rank() == 0:
        checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch))
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    def adjust_learning_rate(epoch, batch_idx):
        position = epoch + batch_idx / len(train_loader)
        if position < args.warmup_epochs:
            lr_adj = 1.0 / hvd.size() * (position * (hvd.size() - 1) / args.warmup_epochs + 1)
        else:
            lr_adj = 1.0 if epoch < 30 else 0.1
        for param_group in optimizer.param_groups:
            param_group["lr"] = args.base_lr * lr_scaler * lr_adj

    def train(epoch):
        model.train()
        train_sampler.set_epoch(epoch)
        train_loss, train_accuracy = Metric("train_loss"), Metric("train_accuracy")
        for batch_idx, (data, target) in enumerate(train_loader):
            adjust_learning_rate(epoch, batch_idx)
            if cuda:
                data, target = data.cuda(), target.cuda()
            optimizer.zero_grad()
            for i in range(0, len(data), args.batch_size):
                data_batch, target_batch = data[i : i + args.batch_size], target[i : i + args.batch_size]
                output = model(data_batch)
                train_accuracy.update(accuracy(output, target_batch))
                loss = F.cross_entropy(output, target_batch)
                train_loss.update(loss)
                loss.div_(math.ceil(len(data) / args.batch_size))
                loss.backward()
            optimizer.step()
        if verbose:
            print(f"Train Epoch #{epoch + 1}: loss={train_loss.avg:.4f}, accuracy={100 * train_accuracy.avg:.1f}")

    def validate(epoch):
        model.eval()
        val_loss, val_accuracy = Metric("val_loss"), Metric("val_accuracy")
        with torch.no_grad():
            for data, target in val_loader:
                if cuda:
                    data, target = data.cuda(), target.cuda()
                output = model(data)
                val_loss.update(F.cross_entropy(output, target))
                val_accuracy.update(accuracy(output, target))
        if verbose:
            print(f"Validate Epoch #{epoch + 1}: loss={val_loss.avg:.4f}, accuracy={100 * val_accuracy.avg:.1f}")

    def save_checkpoint(epoch):
        if hvd.rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, args.checkpoint_format.format(epoch=epoch + 1))

    for epoch in range(resume_from_epoch, args.epochs):
        train(epoch)
        validate(epoch)
        save_checkpoint(epoch)


if __name__ == "__main__":
    main(parser.parse_args())
