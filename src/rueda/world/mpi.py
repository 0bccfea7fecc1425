"""A broadcast over MPI, which tells all workers under mpirun the address of rank 0.

mpirun sets a worker's rank but not the address of rank 0, which need not run on the machine where mpirun was started.
So rank 0 broadcasts it over MPI, whose library is on every machine where mpirun starts workers. The library is called
through :mod:`ctypes`, so no Python package needs to be installed.

The handles of the two MPI families differ: Open MPI exports them as objects (``ompi_mpi_comm_world``); MPICH and the
libraries of its ABI (Intel MPI, MVAPICH, Cray) define them as integers.

MPI stays initialised until the process exits, so that mpi4py can be used in the same script, and is finalised at exit.
If the script initialised MPI itself, the script must finalise it.
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


def broadcast(message: bytes, *, launcher: str, one_host: bool = False, longest: int = 4096) -> bytes:
    """Broadcast rank 0's message and return it on every worker; all workers must call it.

    Args:
        message: the message, on rank 0.
        launcher: the kind of MPI.
        one_host: whether all workers are on one host, where shared memory suffices: Open MPI's network transports would
            listen on the network.
        longest: the most bytes that a message may have.
    """
    library = _library(launcher)
    if one_host:
        os.environ.setdefault("OMPI_MCA_btl", "^tcp,ofi")
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
    """Load the MPI library of the mpirun that started this worker: from its own folder, else from the system's path."""
    names = ["libmpi.so.40", "libmpi.so"] if launcher == "Open MPI" else ["libmpich.so.12", "libmpi.so.12", "libmpi.so"]
    folders = [
        Path(prefix, "lib") for name in ("OPAL_PREFIX", "I_MPI_ROOT", "MPI_HOME") if (prefix := os.environ.get(name))
    ]
    if (mpirun := shutil.which("mpirun")) is not None:
        folders.append(Path(mpirun).resolve().parent.parent / "lib")
    candidates = [str(folder / name) for folder in folders for name in names] + names
    for candidate in candidates:
        try:
            # Open MPI's plug-ins need its symbols to be global.
            return ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise WorldError(
        f"{launcher} started this worker, but its library ({names[0]}) was not found; add its folder to "
        "LD_LIBRARY_PATH, or set the address of rank 0: mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500"
    )
