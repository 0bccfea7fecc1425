"""The three ways in which a converted script is parallel: torch's own DDP, Rueda's few lines, Horovod's steps."""

from __future__ import annotations

from dataclasses import dataclass

SHARED = '''\
class SharedLoader(torch.utils.data.DataLoader):
    """Gives each worker its share of every batch of a DataLoader, the last and smaller one included.

    Rank 0 draws the batches and sends them to the others. So any sampler may choose them, and the order is that of the
    script on one worker. (torch's DistributedSampler repeats examples until they can be divided by the workers.)
    """

    weight = 1.0  # of the share that was read last; 1 if all workers have equal shares

    def __init__(self, whole):
        self.whole = whole
        names = ["collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"]
        names += ["generator", "prefetch_factor", "persistent_workers"]
        options = {name: getattr(whole, name) for name in names}
        super().__init__(whole.dataset, batch_sampler=Shares(whole.batch_sampler), **options)

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            SharedLoader.weight = self.batch_sampler.weights[number]
            yield batch
'''
SHARES = '''\
class Shares:
    """A batch sampler: the indices of this worker's share of every batch."""

    def __init__(self, batches):
        self.batches, self.weights = batches, []

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        rank, size = {rank}, {size}
        {broadcast}
        parts = [batch[rank::size] for batch in batches]
        self.weights = [len(part) * size / len(batch) for part, batch in zip(parts, batches)]
        yield from (part or batch[:1] for part, batch in zip(parts, batches))  # without a part: one of weight 0
'''
STREAM = '''\
class SharedLoader(torch.utils.data.DataLoader):
    """Gives each worker its share of every batch of a DataLoader whose data set is iterated over.

    Every worker reads the entire stream, and computes on its share: one example in as many as there are workers.
    """

    weight = 1.0  # of the share that was read last; 1 if all workers have equal shares

    def __init__(self, whole):
        self.whole, self.collate_whole, self.rank, self.size = whole, whole.collate_fn, {rank}, {size}
        names = ["batch_size", "drop_last", "num_workers", "pin_memory", "timeout", "worker_init_fn"]
        names += ["multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"]
        options = {{name: getattr(whole, name) for name in names}}
        super().__init__(whole.dataset, collate_fn=self.collate_share, **options)

    def collate_share(self, examples):
        share = examples[self.rank :: self.size]
        return len(share) * self.size / len(examples), self.collate_whole(share or examples[:1])

    def __iter__(self):
        for SharedLoader.weight, batch in super().__iter__():
            yield batch
'''
SUM = '''
    @staticmethod
    def sum(value):
        """Return the sum over the shares of all workers, of a number or a tensor."""
        kind = torch.float64 if isinstance(value, float) else None
        total = torch.as_tensor(value, dtype=kind).detach() * (SharedLoader.weight > 0)
        {all_reduce}
        return total if isinstance(value, torch.Tensor) else total.item()
'''
MEAN = '''
    @staticmethod
    def mean(value):
        """Return the mean over a batch, given that over this worker's share of it."""
        return SharedLoader.sum(value * SharedLoader.weight) / {size}
'''
SHARE_WHY = (
    "# Each worker reads its share of every batch. All shares together are the serial script's batch, so its learning",
    "# rate and its schedule stay right.",
)
WEIGHT_WHY = (
    "# The gradients of all workers are averaged; where their shares are not equally large, the weight makes that the",
    "# gradient of the mean over the entire batch.",
)
AGAIN_WHY = "# Weighted with the size of this worker's share, as above."
SUM_WHY = (
    "# The loss is a sum over the batch, and gradients are averaged: times the workers, it is their sum. A worker that",
    "# has no example of a small batch adds nothing.",
)


@dataclass(frozen=True)
class Style:
    """The words of one way. Texts with ``{}`` take the name of a model or an optimizer."""

    name: str
    imports: tuple[str, ...]
    connect: tuple[str, ...]
    rank: str
    size: str
    is_main: str
    barrier: str
    wrap: tuple[str, ...] = ()
    unwrap: str = "{}"
    unwrap_any: str = "{}"
    """where it is not known whether the model is wrapped already"""
    finish: tuple[str, ...] = ()
    broadcast: str = ""
    """in the batch sampler: rank 0's batches for all"""
    all_reduce: str = ""
    """of the tensor ``total``; empty: Rueda has the loader"""
    seeds_torch: bool = True
    """whether torch's generators are still the same on all workers when the model is wrapped"""
    optimizer: tuple[str, ...] = ()
    """after the optimizer was made"""


DDP = Style(
    name="ddp",
    imports=("import os", "import torch", "import torch.distributed as dist"),
    connect=(
        "# Connect the workers. torchrun and `rueda run` tell each its rank; without them, this is the only one.",
        'if "RANK" in os.environ:',
        "    dist.init_process_group()",
        "else:",
        "    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)",
        "if torch.cuda.is_available():  # Each worker has a GPU of its own.",
        '    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))',
    ),
    rank="dist.get_rank()",
    size="dist.get_world_size()",
    is_main="dist.get_rank() == 0",
    barrier="dist.barrier()",
    wrap=(
        "# All workers start with rank 0's parameters, and every backward pass averages their gradients.",
        "{0} = torch.nn.parallel.DistributedDataParallel({0})",
    ),
    unwrap="{}.module",
    unwrap_any='getattr({0}, "module", {0})',
    finish=("dist.barrier()  # Leave together.", "dist.destroy_process_group()"),
    broadcast="batches = [list(self.batches) if rank == 0 else None]\n"
    "        dist.broadcast_object_list(batches)\n"
    "        batches = batches[0]",
    all_reduce="dist.all_reduce(total)",
)

RUEDA = Style(
    name="rueda",
    imports=("import rueda", "from rueda.data import SharedLoader"),
    connect=("world = rueda.init()  # Connect the workers: each has its rank, and a GPU of its own.",),
    rank="world.rank",
    size="world.size",
    is_main="world.is_main",
    barrier="world.barrier()",
    wrap=(
        "# All workers start with rank 0's parameters, and every backward pass averages their gradients. From here on",
        "# dropout and noise differ between the workers.",
        "{0} = world.wrap({0})",
    ),
    unwrap="world.unwrap({})",
    unwrap_any="world.unwrap({})",
    finish=("rueda.finish()  # Leave together.",),
    seeds_torch=False,
)

HOROVOD = Style(
    name="horovod",
    imports=("import torch", "import horovod.torch as hvd"),
    connect=(
        "# Connect the workers.",
        "hvd.init()",
        "if torch.cuda.is_available():  # Each worker has a GPU of its own.",
        "    torch.cuda.set_device(hvd.local_rank())",
    ),
    rank="hvd.rank()",
    size="hvd.size()",
    is_main="hvd.rank() == 0",
    barrier="hvd.barrier()",
    optimizer=(
        "# All workers start with rank 0's parameters, and every step averages their gradients.",
        "{1} = hvd.DistributedOptimizer({1}{2})",
    ),
    broadcast="batches = hvd.broadcast_object(list(self.batches) if rank == 0 else None, root_rank=0)",
    all_reduce="total = hvd.allreduce(total, op=hvd.Sum)",
)

STYLES = {style.name: style for style in (DDP, RUEDA, HOROVOD)}
