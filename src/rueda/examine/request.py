"""The request that ``rueda examine`` sends to its workers, and their answer. This module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rueda.errors import ExamineError
from rueda.files.start_directory import located
from rueda.records.landscape import PICTURES

SPLITS = ("train", "test")
NORMALISATIONS = ("filter", "layer", "none")
BATCH_NORM = ("auto", "running", "recalibrate")


@dataclass(frozen=True, kw_only=True)
class LandscapeRequest:
    """The pictures of the landscape that are requested, and their resolution."""

    pictures: tuple[str, ...] = ("surface",)
    """among ``surface``, ``path``, ``lines`` and ``interpolation``"""
    points: int | None = None
    """points per axis; 51 by default, and 25 for an interpolation"""
    span: float = 1.0
    """surfaces and lines reach from -span to span"""
    num_lines: int = 1
    seed: int = 0
    """the seed of the random directions"""
    normalise: str = "filter"
    batch_norm: str = "auto"
    """``running``: the model's own statistics at every point (interpolation: interpolated); ``recalibrate``: recomputed
    at every point over the training examples; ``auto``: as the papers do, running for surface and lines, recalibrated
    for path and interpolation, where the weights go far"""

    def __post_init__(self) -> None:
        unknown = [name for name in self.pictures if name not in PICTURES]
        rules = {
            "pictures": (not unknown, f"some of {', '.join(PICTURES)}", unknown),
            "points": (self.points is None or self.points >= 2, "2 or more", self.points),
            "span": (0 < self.span < float("inf"), "a number above 0", self.span),
            "lines": (self.num_lines >= 1, "1 or more", self.num_lines),
            "normalise": (self.normalise in NORMALISATIONS, f"one of {', '.join(NORMALISATIONS)}", self.normalise),
            "batch_norm": (self.batch_norm in BATCH_NORM, f"one of {', '.join(BATCH_NORM)}", self.batch_norm),
        }
        for name, (holds, expected, got) in rules.items():
            if not holds:
                raise ExamineError(name, expected=expected, got=got, do="correct it")

    def num_points(self) -> int:
        """Return the number of points of all pictures."""
        side = self.points or 51
        counts = {
            "surface": side**2,
            "path": side**2,
            "lines": side * self.num_lines,
            "interpolation": self.points or 25,
        }
        return sum(counts[name] for name in self.pictures)


@dataclass(frozen=True, kw_only=True)
class ExamineRequest:
    """What to examine, how, and where to write the results."""

    paths: tuple[Path, ...]
    landscape: LandscapeRequest = field(default_factory=LandscapeRequest)
    sharpness: bool = False
    hessian: bool = False
    density: bool = True
    """whether the Hessian's spectral density is computed, too"""
    task: str | None = None
    settings: tuple[str, ...] = ()
    checkpoint: str = "last"
    num_examples: int | None = 1024
    splits: tuple[str, ...] = SPLITS
    folder: Path | None = None
    progress: bool = True
    directory: Path = field(default_factory=Path.cwd)
    """the working directory of the command, to which paths are relative even if a task file changes the directory"""

    def __post_init__(self) -> None:
        unknown = [name for name in self.splits if name not in SPLITS]
        if unknown or not self.splits or len(set(self.splits)) != len(self.splits):
            raise ExamineError("--splits", expected="train, test or both", got=",".join(self.splits), do="correct it")
        if "interpolation" in self.landscape.pictures and len(self.paths) != 2:
            raise ExamineError("--interpolate", expected="two runs or checkpoints", got=len(self.paths), do="name two")

    def result_folder(self) -> Path:
        """Return the folder of the results."""
        if self.folder is not None:
            return self.located(self.folder)
        paths = [self.located(path) for path in self.paths]
        if len(paths) == 1 and paths[0].is_dir():
            return paths[0]
        names = [(path if len(paths) == 1 else path.resolve()).name.split(".")[0] for path in paths]
        return self.located(Path("runs", "examine-" + (names[0] if len(paths) == 1 else "-".join(names)[:80])))

    def located(self, path: Path) -> Path:
        """Return a path of the request as an absolute path, since this process may have changed its directory."""
        return located(path, self.directory)


@dataclass(frozen=True, kw_only=True)
class ExamineAnswer:
    """The answer of a finished examination; its records are in the request's result folder."""
