"""Under mpirun the workers can already talk: one broadcast over MPI tells all where rank 0 waits.

mpirun says who a worker is but not where rank 0 can be reached, and rank 0 need not run on the machine where mpirun
was typed. MPI itself knows: its library is on every machine where mpirun starts workers, so it is called here through
:mod:`ctypes`, with no package to install and on any network that MPI runs on.

The handles of the two families of MPI differ: Open MPI exports them as objects (``ompi_mpi_comm_world``), MPICH and
all of its ABI (Intel MPI, MVAPICH, Cray) fixes them as numbers.

MPI stays initialised until the process ends, so that mpi4py in the same script finds it, and mpirun sees a
proper ``MPI_Finalize``. A script that initialised MPI itself keeps that duty.
"""

from __future__ import annotations

import atexit
import ctypes
import ctypes.util
import os
import shutil
from pathlib import Path

from rueda.errors import WorldError

_MPICH_COMM_WORLD = 0x44000000
_MPICH_BYTE = 0x4C00010D


def broadcast(message: bytes, *, launcher: str, longest: int = 4096) -> bytes:
    """Give every worker the message of rank 0; the others' own is ignored. All workers must call it."""
    library = _library(launcher)
    _initialise(library)
    if launcher == "Open MPI":
        communicator = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, "ompi_mpi_comm_world")))
        byte = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, "ompi_mpi_byte")))
    else:
        communicator, byte = ctypes.c_int(_MPICH_COMM_WORLD), ctypes.c_int(_MPICH_BYTE)  # type: ignore[assignment]
    buffer = ctypes.create_string_buffer(message, longest)
    status = library.MPI_Bcast(buffer, ctypes.c_int(longest), byte, ctypes.c_int(0), communicator)
    if status != 0:
        raise WorldError(f"MPI_Bcast failed with status {status}; set MASTER_ADDR and MASTER_PORT instead")
    return buffer.value


def _initialise(library: ctypes.CDLL) -> None:
    flag = ctypes.c_int()
    library.MPI_Initialized(ctypes.byref(flag))
    if flag.value:
        return
    library.MPI_Init(None, None)
    atexit.register(_finalise, library)


def _finalise(library: ctypes.CDLL) -> None:
    flag = ctypes.c_int()
    library.MPI_Finalized(ctypes.byref(flag))
    if not flag.value:
        library.MPI_Finalize()


def _library(launcher: str) -> ctypes.CDLL:
    """Load the MPI of the mpirun that started us: its own folder first, then wherever the system finds one."""
    names = ["libmpi.so.40", "libmpi.so"] if launcher == "Open MPI" else ["libmpich.so.12", "libmpi.so.12", "libmpi.so"]
    folders = [
        Path(prefix, "lib") for name in ("OPAL_PREFIX", "I_MPI_ROOT", "MPI_HOME") if (prefix := os.environ.get(name))
    ]
    if (mpirun := shutil.which("mpirun")) is not None:
        folders.append(Path(mpirun).resolve().parent.parent / "lib")
    candidates = [str(folder / name) for folder in folders for name in names] + names
    for candidate in candidates:
        try:
            # Open MPI's plug-ins look its symbols up globally.
            return ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise WorldError(
        f"{launcher} started this worker, but its library ({names[0]}) was not found; add its folder to "
        "LD_LIBRARY_PATH, or say where rank 0 waits: mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500"
    )
