"""Names that try to run a script, and a study that holds them wherever text can stand."""

from __future__ import annotations

import json
from pathlib import Path

from report.samples import ABOUT, write_json, write_study
from rueda.records.recipe.recipe import Recipe

HOSTILE = [
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<!-- <script>",
    "\"' onmouseover='window.pwned=1' autofocus onfocus=window.pwned=1 \"",
    '<a href="javascript:window.pwned=1">click</a>',
    "&lt;b&gt; &#60;script&#62;window.pwned=1&#60;/script&#62;",
    "]]>\u2028\u2029window.pwned=1//",
    "%{x} ${window.pwned=1} $\\href{javascript:window.pwned=1}{x}$",
    "<svg/onload=window.pwned=1>",
    "\u202egnp.exe\x00\x1b[31m",
    "lone \ud800 surrogate",
    "<style>body{display:none}</style>",
    "@red",
    "one¶two",
]


def write_hostile(folder: Path) -> Path:
    """Write a study whose every text is hostile."""
    table = [(name, 0.9 - index / 100, 5000) for index, name in enumerate(HOSTILE)]
    write_study(folder, task=HOSTILE[0], seeds=1, table=table, summary=" ".join(HOSTILE))
    study = json.loads((folder / "study.json").read_text())
    for index, row in enumerate(study["rows"]):
        row["workers"] = 1 if index == 0 else 8
        row["runs"].append(f"runs/{HOSTILE[1]}")  # is not there: it is noted
        about = dict.fromkeys(("time", "commit", "command"), HOSTILE[index])
        about["machine"] = {"processor": HOSTILE[index], "system": HOSTILE[0], "cores": HOSTILE[1], "gpus": HOSTILE}
        about["versions"] = {HOSTILE[index]: HOSTILE[0]}
        run = folder / "runs" / f"{index}-0"
        write_json(run / "environment.json", {**ABOUT, **about, "task": HOSTILE[index], "rehearsed": HOSTILE[0]})
        readable = HOSTILE[index].encode(errors="replace").decode().replace("\x00", "").replace("\x1b", "")
        Recipe(workers=8, model={"width": readable}, reasons={"batch": "<b>"}).save(run / "recipe.toml")
    study["environment"], study["command"] = {**ABOUT, "machine": HOSTILE[1], "commit": HOSTILE[0]}, HOSTILE[0]
    study["rows"][1]["summary"] = HOSTILE[0]
    write_json(folder / "study.json", study)
    return folder
