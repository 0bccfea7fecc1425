"""Every byte that need not change stays, whatever a script looks like; the diff applies; the result is Python."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest
from torch import nn

from rueda.check.convert import convert
from rueda.check.convert.difference import unified_diff
from rueda.check.convert.steps.wrapping import MODULE_NAMES
from scalehere import SCRIPTS

BASE = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(20, 3), torch.randn(20, 1))
loader = DataLoader(data, batch_size=4, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print("epoch", epoch)
torch.save(model.state_dict(), "model.pt")
"""
PRINT = '    print("epoch", epoch)\n'
LAST = 'torch.save(model.state_dict(), "model.pt")\n'
IN_MAIN = "".join(f"    {line}\n" for line in BASE.splitlines()[3:])
HEAD = "\n".join(BASE.splitlines()[:3]) + "\n"
LAYOUTS = {
    "as it is": BASE,
    "without a newline at the end": BASE.rstrip("\n"),
    "CRLF": BASE.replace("\n", "\r\n"),
    "CRLF, without one at the end": BASE.replace("\n", "\r\n").rstrip("\r\n"),
    "tabs": BASE.replace("    ", "\t"),
    "two spaces": BASE.replace("    ", "  "),
    "form feeds": BASE.replace("model = ", "\fmodel = ").replace("for epoch", "\f\nfor epoch"),
    "a byte order mark": "\ufeff" + BASE,
    "a coding line": "# -*- coding: utf-8 -*-\n" + BASE.replace('"epoch"', '"épôch 漢字"'),
    "from __future__": '"""Ein Text."""\nfrom __future__ import annotations\n' + BASE,
    "an if on one line": BASE.replace(PRINT, '    if epoch: print("epoch", epoch)\n'),
    "an if with an else": BASE.replace(PRINT, '    if epoch: print(1)\n    else: print(2); print(3)  # both\n'),
    "semicolons": BASE.replace(PRINT, '    a = 1; print("epoch", epoch); b = 2;\n'),
    "semicolons around the step": BASE.replace("        loss.backward()\n        opt", "        loss.backward(); opt"),
    "imports with semicolons": BASE.replace("import torch\n", "import os; import torch\n", 1),
    "a loop on one line": BASE + "for n in range(3): print(n)\n",
    "a try": BASE.replace(PRINT, "    try: print(epoch)\n    except ValueError: print(1)\n    finally: print(2)\n"),
    "a string over lines": BASE.replace(PRINT, '    print("""epoch\n  %d\n\tend""" % epoch)\n'),
    "an f-string over lines": BASE.replace(PRINT, '    print(f"""{epoch}\n  {loss.item():.3f}\n""")\n'),
    "nested quotes": BASE.replace(PRINT, """    print(f"{'a' if epoch else 'b'} {loss.item()!r:>{10 + 2}}")\n"""),
    "continued lines": BASE.replace(PRINT, '    print("epoch", \\\n  epoch)\n'),
    "a call over lines": BASE.replace(PRINT, '    print(\n        "epoch",\n\n  # which\n        epoch,\n    )\n'),
    "a decorator": BASE.replace("for epoch", "@torch.no_grad()\ndef show(): print(1)\nfor epoch"),
    "a walrus": BASE.replace(PRINT, "    if (n := epoch) > 0:\n        print(n)\n"),
    "match": BASE.replace(PRINT, "    match epoch:\n        case 0: print(0)\n        case _:\n            print(1)\n"),
    "async": HEAD + f"import asyncio\nasync def main():\n{IN_MAIN}asyncio.run(main())\n",
    "main": HEAD + f"def main():\n{IN_MAIN}\nif __name__ == '__main__':\n    main()\n",
    "main on one line": HEAD + f"def main():\n{IN_MAIN}if __name__ == '__main__': main()\n",
    "exit(main())": HEAD + f"def main():\n{IN_MAIN}\nif __name__ == '__main__':\n    exit(main())\n",
    "only under __main__": HEAD + f"if __name__ == '__main__':\n{IN_MAIN}",
    "cells of a notebook": BASE.replace("model = ", "# %%\nmodel = ").replace("for epoch", "# %% text\nfor epoch"),
    "type comments and annotations": BASE.replace("model = nn", "model: nn.Module = nn"),
    "a with that writes": BASE.replace(PRINT, '    with open("log", "a") as log:\n        log.write(str(loss))\n'),
    "a file that is kept": BASE.replace("for epoch", 'log = open("log.txt", "w")\nfor epoch'),
    "names that are taken": BASE.replace("data", "dist").replace("utils.dist", "utils.data") + "world = 1\n",
}  # fmt: skip


def applied(folder: Path, before: bytes, diff: bytes, command: list[str]) -> bytes:
    folder.mkdir()
    (folder / "train.py").write_bytes(before)
    done = subprocess.run(command, cwd=folder, input=diff, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "train.py").read_bytes()


@pytest.mark.parametrize("to", ["ddp", "rueda", "horovod"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_is_kept(layout: str, to: str, tmp_path: Path) -> None:
    before = LAYOUTS[layout].encode()
    conversion = convert(before, to=to)
    after = conversion.after
    assert not conversion.warnings
    ast.parse(after)
    assert after.endswith(b"\n") == before.endswith(b"\n")
    assert after.startswith(b"\xef\xbb\xbf") == before.startswith(b"\xef\xbb\xbf")
    if b"\r\n" in before:
        assert after.count(b"\n") == after.count(b"\r\n")
    if b"\t" in before and layout == "tabs":
        assert not any(line.startswith(b" ") for line in after.splitlines() if b"#" in line and b"if" in line)
    kept = [line.strip() for line in before.splitlines() if line.strip()]
    changed = [line for line in kept if line not in [each.strip() for each in after.splitlines()]]
    assert len(changed) <= 6, changed
    diff = unified_diff(before, after, "train.py")
    if to == "ddp":
        if shutil.which("patch"):
            assert applied(tmp_path / "patch", before, diff, ["patch", "-p0", "--binary"]) == after
        assert applied(tmp_path / "git", before, diff, ["git", "apply", "-p0", "--whitespace=nowarn"]) == after


def test_a_latin_1_script_keeps_its_encoding() -> None:
    before = ("# coding: latin-1\n" + BASE.replace('"epoch"', '"épôch"')).encode("latin-1")
    after = convert(before, to="ddp").after
    assert "épôch".encode("latin-1") in after and ast.parse(after)


@pytest.mark.parametrize("file", sorted(SCRIPTS.glob("*.py")), ids=lambda file: file.stem)
@pytest.mark.parametrize("to", ["ddp", "rueda", "horovod"])
def test_each_hunk_says_why(file: Path, to: str) -> None:
    before = file.read_bytes()
    hunks = unified_diff(before, convert(before, to=to).after, "train.py").decode().split("\n@@ ")[1:]
    assert hunks
    for hunk in hunks:
        assert any(line.startswith("+") and "# " in line for line in hunk.splitlines()), hunk
    assert not [line for hunk in hunks for line in hunk.splitlines() if line.startswith("+#") and len(line) > 121]


def test_a_wrapper_has_the_names_of_every_module() -> None:
    """The command does not load torch, so the list is kept by hand."""
    names = {name for name in dir(nn.Module) if not name.startswith("_")} | {"training"}
    apart = {"state_dict", "load_state_dict", "T_destination", "call_super_init", "dump_patches"}
    assert names - apart - MODULE_NAMES == set()
    assert not MODULE_NAMES - names - {"ipu", "mtia", "xpu", "set_submodule"}
