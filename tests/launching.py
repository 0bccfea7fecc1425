"""Real launches: a command as a process, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

# As the installed command does it: the working directory is not a place of modules.
RUEDA = [sys.executable, "-c", "import sys; sys.path.remove(''); from rueda.cli import main; main()", "run"]


def marked(mark: str) -> dict[int, str]:
    """Find the living processes whose environment holds a mark, and their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text(errors="replace")
                if stat.rpartition(")")[2].split()[0] != "Z" and mark.encode() in (folder / "environ").read_bytes():
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(folder.name)] = line
            except OSError:
                continue
    return found


@dataclass
class Started:
    """A launch, with the mark that all its processes carry."""

    process: subprocess.Popen[str]
    mark: str

    def end(self, timeout: float = 120) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def end_quietly(self, timeout: float = 120) -> tuple[int, str, list[str]]:
        """End it, and give the lines of standard error without the warning on a machine of few cores."""
        status, out, err = self.end(timeout)
        return status, out, [line for line in err.splitlines() if not line.endswith("which they share")]

    def processes(self) -> dict[int, str]:
        """Give the command lines of all its living processes, on any host."""
        return marked(self.mark)

    def left(self, seconds: float = 8.0) -> list[str]:
        """Give the processes that are still there, the driver aside; waits for those that are on their way out."""
        deadline = time.monotonic() + seconds
        while (living := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return list(living.values())

    def signal_all(self, number: int) -> None:
        """Send a signal to every process of the job, as scancel and systemd do."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_until_output_is_full(self) -> None:
        """Wait until the pipe of standard output, which nobody reads, takes no more.

        How many bytes fit depends on how the writes fall on the pipe's pages and on the kernel's limits for a user,
        so the pipe itself is asked whether one may write to it.
        """
        assert self.process.stdout is not None
        deadline = time.monotonic() + 60
        pipe = os.open(f"/proc/self/fd/{self.process.stdout.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            while select.select([], [pipe], [], 0)[1]:
                assert time.monotonic() < deadline, "the output is never full"
                time.sleep(0.05)
        finally:
            os.close(pipe)

    def wait_for_line(self, text: str) -> str:
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if text in line:
                return seen
        raise AssertionError(f"{text!r} never came: {seen}")


@dataclass
class Launcher:
    """Starts commands, and ends what a failed test leaves."""

    folder: Path
    rueda: list[str] = field(default_factory=lambda: list(RUEDA))
    started: list[Started] = field(default_factory=list)

    def script(self, text: str, name: str = "work.py") -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, *words: str, command: list[str] | None = None, **environment: str) -> Started:
        mark = uuid.uuid4().hex
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMP_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "SLURM_"))
        }
        process = subprocess.Popen(
            [*(RUEDA if command is None else command), *words],
            cwd=self.folder,
            env={**environ, "RUEDA_TEST_MARK": mark, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a process group as a shell would make, to which Ctrl-C goes
        )
        self.started.append(Started(process, mark))
        return self.started[-1]

    def run(self, *words: str, command: list[str] | None = None, **environment: str) -> tuple[int, str, str]:
        return self.start(*words, command=command, **environment).end()

    def close(self) -> None:
        for one in self.started:
            if one.process.poll() is None:
                os.killpg(one.process.pid, signal.SIGKILL)
                one.process.wait()
            for pid in marked(one.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for stream in (one.process.stdout, one.process.stderr):
                if stream is not None:
                    stream.close()
