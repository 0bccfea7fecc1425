"""The name `horovod`: the same modules under two names, a genuine Horovod, and the ways to get the name."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness import QUICK_START
from rueda.errors import WorldError
from rueda.hvd import alias

SHIM = str(alias.FOLDER)


def python(code: str, *words: str, fails: bool = False, cwd: Path | None = None, **environ: str) -> str:
    """Run code in a new interpreter and give its output, or the last line of its error if it must fail.

    PYTHONPATH is what the test says, and behind it the folder by which torch is imported sooner.
    """
    variables = {name: value for name, value in os.environ.items() if name != "RUEDA_HOROVOD"}
    path = os.pathsep.join([*filter(None, [environ.pop("PYTHONPATH", None)]), QUICK_START])
    done = subprocess.run(
        [sys.executable, *(["-c", code] if code else []), *words],
        cwd=cwd, env={**variables, **environ, "PYTHONPATH": path}, text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr.strip().splitlines()[-1] if fails else done.stdout.strip()


@pytest.fixture
def genuine(tmp_path: Path) -> Path:
    """A folder on which a genuine Horovod is installed."""
    package = tmp_path / "site" / "horovod"
    (package / "torch").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.28.1'")
    (package / "torch" / "__init__.py").write_text("maker = 'genuine'")
    return package.parent


SAME = """
import horovod, horovod.torch as hvd, horovod.torch.mpi_ops, importlib.util, pickle, sys
from horovod.torch import mpi_ops
from horovod.torch.compression import Compression
import rueda.hvd, rueda.hvd.torch, rueda.hvd.torch.compression
assert horovod is rueda.hvd and hvd is rueda.hvd.torch and horovod.torch is hvd
assert mpi_ops is horovod.torch.mpi_ops is rueda.hvd.torch.mpi_ops is sys.modules["rueda.hvd.torch.mpi_ops"]
assert Compression is rueda.hvd.torch.compression.Compression is hvd.Compression
assert hvd.__name__ == hvd.__spec__.name == hvd.__spec__.loader.name == "rueda.hvd.torch"
assert importlib.util.find_spec("horovod") and importlib.util.find_spec("horovod.torch")
assert importlib.util.find_spec("horovod.runner.util.threads").name == "horovod.runner.util.threads"
assert pickle.loads(b"chorovod.torch.compression\\nFP16Compressor\\n.") is Compression.fp16  # by Horovod's name
assert pickle.loads(pickle.dumps(hvd.ProcessSet([0]))).ranks == [0]
from horovod.common.exceptions import HorovodInternalError
assert hvd.HorovodInternalError is HorovodInternalError
import horovod.torch.elastic
from horovod.torch.elastic.sampler import ElasticSampler
assert horovod.torch.elastic is hvd.elastic and hvd.elastic.ElasticSampler is ElasticSampler
for statement in ("import horovod.runner.elastic", "from horovod.runner import elastic", "horovod.runner.elastic.run"):
    try:
        exec(statement)
    except (ImportError, AttributeError) as error:
        assert str(error).startswith("horovod.runner.elastic is gone: the driver belongs to the launcher"), error
    else:
        raise AssertionError(statement)
print("same")
"""


def test_two_names_for_the_same_modules() -> None:
    assert python(SAME, PYTHONPATH=SHIM) == "same"


def test_one_line_in_the_script() -> None:
    code = """
import rueda.hvd
assert rueda.hvd.install() and rueda.hvd.install()
import horovod.runner.util.threads, horovod.common.util as util
from horovod.runner.common.util import env
assert horovod is rueda.hvd and util is rueda.hvd.common.util and env is rueda.hvd.runner.common.util.env
import sys
print(sum(type(finder).__module__ == "rueda.hvd.alias" for finder in sys.meta_path))
"""
    assert python(code) == "1"


def test_the_name_alone_loads_no_torch() -> None:
    code = "import horovod, horovod.runner, sys; print('torch' in sys.modules, horovod.__version__)"
    assert python(code, PYTHONPATH=SHIM) == "False 0.28.1+rueda"


def test_importing_rueda_does_not_provide_horovod() -> None:
    assert python("import importlib.util as u, rueda, rueda.hvd; print(u.find_spec('horovod'))") == "None"


def test_a_genuine_horovod_keeps_its_name(genuine: Path) -> None:
    which = "import horovod; print(horovod.__version__)"
    for path in (f"{genuine}:{SHIM}", f"{SHIM}:{genuine}"):
        found = python("import horovod, horovod.torch as hvd; print(horovod.__version__, hvd.maker)", PYTHONPATH=path)
        assert found == "0.28.1 genuine"
    assert python(which, PYTHONPATH=f"{SHIM}:{genuine}", RUEDA_HOROVOD="1") == "0.28.1+rueda"
    one_line = "import rueda.hvd; print(rueda.hvd.install({}), end=' ');" + which
    assert python(one_line.format(""), PYTHONPATH=str(genuine)) == "False 0.28.1"
    assert python(one_line.format("force=True"), PYTHONPATH=str(genuine)) == "True 0.28.1+rueda"
    late = "import horovod, rueda.hvd; assert not rueda.hvd.install(); rueda.hvd.install(force=True)"
    error = python(late, fails=True, PYTHONPATH=str(genuine))
    assert error.startswith("rueda.errors.WorldError: a genuine Horovod has been imported already")


def test_a_folder_of_that_name_is_no_horovod(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()  # such as one full of scripts, in the working directory
    assert python("import horovod; print(horovod.__name__)", cwd=tmp_path, PYTHONPATH=SHIM) == "rueda.hvd"


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("import horovod.spark", "ModuleNotFoundError: horovod.spark is gone: start the workers with `rueda run`"),
        ("import horovod.spark.torch.estimator", "ModuleNotFoundError: horovod.spark is gone"),
        ("from horovod import ray", "ModuleNotFoundError: horovod.ray is gone: Ray removed Horovod"),
        pytest.param(
            "import horovod.tensorflow as hvd",
            "rueda.errors.MissingExtra: tensorflow is needed but not installed: run `pip install 'rueda[tensorflow]'`",
            marks=pytest.mark.skipif(find_spec("tensorflow") is not None, reason="TensorFlow is installed"),
        ),
        pytest.param(
            "import rueda.hvd.jax as hvd",
            "rueda.errors.MissingExtra: jax is needed but not installed: run `pip install 'rueda[jax]'`",
            marks=pytest.mark.skipif(find_spec("jax") is not None, reason="JAX is installed"),
        ),
        (
            "from horovod.runner import js_run",
            "ModuleNotFoundError: horovod.runner.js_run is gone: there is one launcher",
        ),
        (
            "import horovod.runner; horovod.runner.gloo_run",
            "AttributeError: horovod.runner.gloo_run is gone: there is one launcher",
        ),
        (
            "from horovod.runner.common.util.env import is_kubeflow_mpi",
            "ModuleNotFoundError: horovod.runner.common.util",
        ),
        (
            "from horovod.common.util import wheel",
            "ImportError: cannot import name 'wheel' from 'rueda.hvd.common.util'",
        ),
        ("import horovod; horovod.mxnet", "AttributeError: horovod.mxnet is gone: retired in 2023"),
        (
            "import horovod.mxnet as hvd",
            "ModuleNotFoundError: horovod.mxnet is gone: retired in 2023, does not install",
        ),
        ("import horovod; horovod.wheel", "AttributeError: module 'horovod' has no attribute 'wheel'"),
        ("import horovod.wheel", "ModuleNotFoundError: No module named 'horovod.wheel'"),
    ],
)
def test_what_is_not_there_says_what_to_use(statement: str, error: str) -> None:
    assert python(statement, fails=True, PYTHONPATH=SHIM).startswith(error)


SCRIPT = "import sys, horovod, helper; print(horovod.__name__, __name__, sys.argv, __file__)"


def test_a_script_run_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").touch()
    script = str(tmp_path / "train.py")
    expected = f"rueda.hvd __main__ {[script, '--lr', '1']} {script}"
    assert python("", "-m", "rueda.hvd", script, "--lr", "1") == expected
    assert python("", "-m", "rueda.hvd", "-m", "train", "-v", cwd=tmp_path).startswith("rueda.hvd __main__")
    for words in ([], ["--lr"]):
        assert python("", "-m", "rueda.hvd", *words, fails=True).startswith("rueda: give a script, as in `mpirun")
    assert python("", "-m", "rueda.hvd", "none.py", fails=True).startswith("rueda: the script none.py does not exist")


def test_install_and_uninstall_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alias.sysconfig, "get_path", lambda name: str(tmp_path))
    assert alias.main([]) == SHIM
    alias.main(["--install"])
    code = f"import site; site.addsitedir({str(tmp_path)!r}); import horovod; print(horovod.__name__)"
    assert python(code) == "rueda.hvd"
    alias.main(["--uninstall"])
    alias.main(["--uninstall"])
    assert not list(tmp_path.iterdir())
    with pytest.raises(WorldError, match="expected nothing, --install or --uninstall, got '--help'"):
        alias.main(["--help"])
    monkeypatch.setattr(alias.sysconfig, "get_path", lambda name: str(tmp_path / "nowhere"))
    with pytest.raises(WorldError, match=r"cannot be written .* on PYTHONPATH instead"):
        alias.main(["--install"])
