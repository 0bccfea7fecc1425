"""Every launcher's words, good and bad: one table each."""

from __future__ import annotations

import pytest

from rueda.errors import WorldError
from rueda.world.identity import identify

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "server1", "MASTER_PORT": "29500",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "4711", "SLURM_PROCID": "6", "SLURM_NTASKS": "7", "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1", "SLURM_TASKS_PER_NODE": "4,3", "SLURM_JOB_NODELIST": "gpu[03-04]",
}  # fmt: skip

GOOD = {
    "nobody": ({}, ("nobody", 0, 1, 0, 1, None, None)),
    "torchrun": (TORCHRUN, ("torchrun", 3, 8, 1, 2, "server1", 29500)),
    "torchrun, one worker": ({"RANK": "0", "WORLD_SIZE": "1"}, ("torchrun", 0, 1, 0, 1, None, None)),
    "Open MPI": (OPEN_MPI, ("Open MPI", 5, 6, 2, 3, None, None)),
    "Open MPI with an address": (
        {**OPEN_MPI, "MASTER_ADDR": "a", "MASTER_PORT": "1234"},
        ("Open MPI", 5, 6, 2, 3, "a", 1234),
    ),
    "Hydra": (HYDRA, ("Hydra", 1, 4, 1, 2, None, None)),
    "Slurm": (SLURM, ("Slurm", 6, 7, 2, 3, "gpu03", 20000 + 4711 * 17 % 12000)),
    "Slurm, a step of the job": (
        {**SLURM, "SLURM_STEP_NUM_TASKS": "7", "SLURM_NTASKS": "99", "SLURM_STEP_NODELIST": "gpu04"},
        ("Slurm", 6, 7, 2, 3, "gpu04", 20000 + 4711 * 17 % 12000),
    ),
    "Slurm with pmi2": ({**SLURM, "PMI_RANK": "0", "PMI_SIZE": "1"}, ("Slurm", 6, 7, 2, 3, "gpu03", 28087)),
    "mpirun inside Slurm": ({**SLURM, **OPEN_MPI}, ("Open MPI", 5, 6, 2, 3, None, None)),
    "torchrun inside Slurm": ({**SLURM, **TORCHRUN}, ("torchrun", 3, 8, 1, 2, "server1", 29500)),
    "a batch script itself": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, ("nobody", 0, 1, 0, 1, None, None)),
}


@pytest.mark.parametrize(("environ", "expected"), GOOD.values(), ids=GOOD)
def test_good(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    found = identify(environ)
    assert (
        found.launcher, found.rank, found.size, found.local_rank, found.local_size, found.address, found.port,
    ) == expected  # fmt: skip


BAD = {
    "RANK alone": ({"RANK": "0"}, "WORLD_SIZE: expected a positive whole number, since RANK is set, got None"),
    "WORLD_SIZE alone": ({"WORLD_SIZE": "2"}, "RANK: expected a whole number from 0, since WORLD_SIZE is set"),
    "rank too large": ({**TORCHRUN, "RANK": "8"}, "RANK: expected a rank below WORLD_SIZE=8, got 8"),
    "not a number": ({**TORCHRUN, "WORLD_SIZE": "two"}, "since RANK is set, got 'two'"),
    "negative": ({**TORCHRUN, "RANK": "-1"}, "RANK: expected a whole number from 0"),
    "no workers": ({**TORCHRUN, "WORLD_SIZE": "0"}, "WORLD_SIZE"),
    "no address": ({k: v for k, v in TORCHRUN.items() if k != "MASTER_ADDR"}, "MASTER_ADDR: expected the address"),
    "no port": ({k: v for k, v in TORCHRUN.items() if k != "MASTER_PORT"}, "MASTER_PORT"),
    "bad port": ({**TORCHRUN, "MASTER_PORT": "http"}, "MASTER_PORT"),
    "no local rank": ({k: v for k, v in TORCHRUN.items() if not k.startswith("LOCAL")}, "LOCAL_RANK: expected"),
    "local rank too large": ({**TORCHRUN, "LOCAL_RANK": "2"}, "local rank"),
    "MPI size missing": ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE"),
    "Slurm without nodes": ({k: v for k, v in SLURM.items() if "NODELIST" not in k}, "SLURM_JOB_NODELIST"),
    "Slurm's counts": ({**SLURM, "SLURM_TASKS_PER_NODE": "4(y2)"}, "SLURM_TASKS_PER_NODE"),
}


@pytest.mark.parametrize(("environ", "message"), BAD.values(), ids=BAD)
def test_bad(environ: dict[str, str], message: str) -> None:
    with pytest.raises(WorldError) as caught:
        identify(environ)
    text = str(caught.value)
    assert text.startswith(message) or message in text
    assert "\n" not in text and "expected" in text and "got" in text
