"""Train a small GPT on files of tokens: python prepare.py, then this script."""

import argparse
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=12)
parser.add_argument("--accumulate", type=int, default=4, help="micro-batches of an update")
parser.add_argument("--block-size", type=int, default=64)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--min-lr", type=float, default=1e-4)
parser.add_argument("--warmup", type=int, default=10)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--weight-decay", type=float, default=0.1)
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--eval-every", type=int, default=20)
parser.add_argument("--eval-batches", type=int, default=4)
parser.add_argument("--seed", type=int, default=1337)
args = parser.parse_args()

torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def get_batch(split):
    """Draw blocks of tokens; the targets are the next tokens."""
    data = np.memmap(f"{split}.bin", dtype=np.uint16, mode="r")
    starts = rng.integers(len(data) - args.block_size, size=args.batch_size)
    blocks = np.stack([data[start : start + args.block_size + 1] for start in starts]).astype(np.int64)
    tokens = torch.from_numpy(blocks).to(device)
    return tokens[:, :-1], tokens[:, 1:]


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(args.width, 3 * args.width)
        self.out = nn.Linear(args.width, args.width)

    def forward(self, x):
        """Mix each position with those before it."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, args.heads, width // args.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(args.width), Attention()
        self.norm2 = nn.LayerNorm(args.width)
        width = args.width
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x):
        """Add what attention and the MLP compute."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """A decoder-only transformer with tied embeddings."""

    def __init__(self, vocabulary=128):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, args.width)
        self.positions = nn.Embedding(args.block_size, args.width)
        self.blocks = nn.Sequential(*(Block() for _ in range(args.layers)))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, idx, targets):
        """Return the mean loss of all tokens."""
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizer(self):
        """Decay the matrices alone."""
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))


def get_lr(step):
    """Warm up linearly, then follow a cosine."""
    if step < args.warmup:
        return args.lr * (step + 1) / (args.warmup + 1)
    ratio = (step - args.warmup) / (args.steps - args.warmup)
    return args.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (args.lr - args.min_lr)


@torch.no_grad()
def estimate_loss(split):
    """Average the loss over some batches."""
    model.eval()
    losses = torch.stack([model(*get_batch(split)) for _ in range(args.eval_batches)])
    model.train()
    return losses.mean().item()


model = GPT().to(device)
optimizer = model.configure_optimizer()

for step in range(args.steps):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(step)
    if step % args.eval_every == 0 or step == args.steps - 1:
        train_loss, val_loss = estimate_loss("train"), estimate_loss("val")
        print(f"step {step}: train loss {train_loss:.4f}, val loss {val_loss:.4f}")
    for micro_step in range(args.accumulate):
        loss = model(*get_batch("train")) / args.accumulate
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    optimizer.zero_grad()

torch.save({"model": model.state_dict(), "args": vars(args)}, "model.pt")
