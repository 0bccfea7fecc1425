"""Trains the lecture's five variants on real workers, and writes their table: test accuracy after some epochs.

python examples/horovod-keras/table.py --workers 2 --epochs 12 --seeds 1

writes ``docs/results/horovod-keras-cifar10/table.json``, a row for each training, and the table in
``docs/results/README.md``. A training that the file has already, from the same commit and command, is not repeated. The
committed file names a clean commit: commit first, or try with ``--folder`` elsewhere.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

import rueda
from rueda.files.atomic import write_atomically
from rueda.records.archive import read_archive
from rueda.records.environment import environment

ROOT = Path(__file__).resolve().parents[2]
PAGE, NAME = ROOT / "docs" / "results" / "README.md", "horovod-keras-cifar10"
ROWS = {  # the name of a row: its variant, and whether it is trained on one worker
    "one worker": ("naive", True),
    "naive": ("naive", False),
    "batch norm": ("batch-norm", False),
    "batch norm, rate x workers": ("scaling", False),
    "batch norm, rate x workers, warm-up": ("warmup", False),
    "batch norm, LAMB": ("lamb", False),
}
TORCH = {  # the row of the torch study with the same techniques
    "one worker": "one-worker",
    "naive": "naive",
    "batch norm": "batch-norm",
    "batch norm, rate x workers": None,
    "batch norm, rate x workers, warm-up": "batch-norm+linear-warmup",
    "batch norm, LAMB": "batch-norm+lamb",
}


def train(args, variant, workers, seed):
    """Train one variant with ``rueda run``, and return its row."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.json"
        words = ["--variant", variant, "--epochs", args.epochs, "--batch-size", args.batch_size, "--seed", seed]
        words += ["--result", file, *(["--steps", args.steps] if args.steps else [])]
        script = Path(__file__).with_name("cifar10.py")
        command = [
            sys.executable,
            "-m",
            "rueda",
            "run",
            "-np",
            workers,
            "--quiet-ranks",
            sys.executable,
            script,
            *words,
        ]
        if subprocess.run([str(word) for word in command]).returncode or not file.is_file():
            sys.exit(f"{variant} with seed {seed} failed; its rows so far are kept")
        return json.loads(file.read_text())


def markdown(result):
    """Return the table: one line a variant, with the mean and standard deviation over seeds, beside the torch study."""
    num_workers, torch_rows = torch_study(max(row["workers"] for row in result["rows"]), result["epochs"])
    lines = [
        f"| workers | variant | test accuracy | training accuracy | updates | seeds | torch, {num_workers} workers |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in ROWS:
        rows = [row for row in result["rows"] if row["row"] == name]
        if not rows:
            continue
        figures = [_percent([row[key] for row in rows]) for key in ("test_accuracy", "train_accuracy")]
        beside = torch_rows.get(TORCH[name])
        cells = [rows[0]["workers"], name, *figures, f"{rows[0]['updates']:,}", len(rows)]
        lines.append("| " + " | ".join(map(str, [*cells, _percent(beside) if beside else "–"])) + " |")
    return "\n".join(lines)


def _percent(values):
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread} %"


def torch_study(workers, epochs):
    """Return the workers of the torch study with as many workers, else with 8, and what its rows had by this epoch."""
    folder = PAGE.parent / f"cifar10-{workers}-workers"
    workers, folder = (workers, folder) if folder.is_dir() else (8, PAGE.parent / "cifar10-8-workers")
    runs, rows = read_archive(folder), json.loads((folder / "study.json").read_text())["rows"]
    return workers, {row["name"]: [_accuracy_at(runs[run], epochs) for run in row["runs"]] for row in rows}


def _accuracy_at(run, epochs):
    return next(row.test_accuracy for row in run.rows() if row.kind == "epoch" and row.epoch == epochs)


def with_table(page, table):
    """Return the page with the table after its mark, in place of an older one."""
    mark = f"<!-- {NAME} -->\n\n"
    before, found, after = page.partition(mark)
    lines = after.splitlines(keepends=True)
    while found and lines and lines[0].startswith("|"):
        del lines[0]
    rest = "".join(lines).lstrip("\n")
    return f"{before}{mark}{table}\n\n{rest}" if found else page


def main():
    """Train what is missing, and write the table after each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=512, help="examples a worker and step")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, help="steps an epoch, for a trial")
    parser.add_argument("--folder", type=Path, default=PAGE.parent / NAME)
    args = parser.parse_args()
    about = environment()
    installed = {entry.metadata["Name"]: entry.version for entry in distributions()}
    about["versions"] |= {
        name: installed[name] for name in ("tensorflow", "tensorflow_cpu", "keras") if name in installed
    }
    about["versions"].setdefault("rueda", rueda.__version__)  # also where it is on the path but not installed
    is_committed = args.folder.resolve().is_relative_to(PAGE.parent)
    if is_committed and (about["commit"] is None or about["commit"].endswith("+")):
        sys.exit(f"expected a clean commit, got {about['commit']}; commit first, or give --folder elsewhere")
    file, seeds = args.folder / "table.json", list(range(args.seeds))
    result = {
        "environment": about,
        "epochs": args.epochs,
        "seeds": seeds,
        "rows": [],
    }
    if file.is_file():
        older = json.loads(file.read_text())
        if all(older["environment"][key] == about[key] for key in ("commit", "command")):
            result["rows"] = older["rows"]
    for seed in seeds:
        for name, (variant, is_alone) in ROWS.items():
            if any(row["row"] == name and row["seed"] == seed for row in result["rows"]):
                continue
            row = train(args, variant, 1 if is_alone else args.workers, seed)
            result["rows"].append({"row": name, **row})
            args.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(file, (json.dumps(result, indent=1) + "\n").encode())
            if is_committed:
                write_atomically(PAGE, with_table(PAGE.read_text(encoding="utf-8"), markdown(result)).encode())
    print(markdown(result))


if __name__ == "__main__":
    main()
