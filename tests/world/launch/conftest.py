"""Real launches: `rueda run` as a process, and hosts that are network namespaces with an sshd each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launching import Launcher
from namespaces import Hosts, NoHostsError, made_hosts


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    folder = tmp_path / "a folder"
    folder.mkdir()
    one = Launcher(folder)
    yield one
    one.close()


@pytest.fixture
def pretend_ssh(tmp_path: Path) -> str:
    """An ssh that stays here: every host is this machine. It shows how the command line would arrive."""
    path = tmp_path / "pretend-ssh"
    path.write_text(
        "#!/bin/sh\n"
        'case " $* " in *" -G "*) exit 0;; esac\n'
        'while [ "$1" != "--" ]; do shift; done\n'
        'case "$2" in nowhere*) echo "ssh: Could not resolve hostname $2" >&2; exit 255;; esac\n'
        "echo Welcome to this host\n"  # as a talkative login shell would
        'exec env -i SSH_CONNECTION="127.0.0.1 1 127.0.0.1 2" /bin/sh -c "$3"\n'
    )
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Make two hosts, a place from which they are driven, and a stranger's place; see :func:`made_hosts`."""
    try:
        with made_hosts(tmp_path_factory.mktemp("hosts"), f"rueda{os.getpid()}") as found:
            yield found
    except NoHostsError as error:
        pytest.skip(str(error))
