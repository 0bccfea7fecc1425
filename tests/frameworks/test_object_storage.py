"""Checkpoints on object storage: written to and read from a real S3 server of this test, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rueda
from harness import workers
from rueda.errors import RunError
from rueda.files.remote import RemotePath
from rueda.records import Recipe, Run
from rueda.train.checkpoint import best_checkpoint, latest_checkpoint, list_checkpoints, step_of
from tinytask import network, parameters, tiny_task

pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'rueda[remote]'")
pytest.importorskip("moto.server", reason="moto, the S3 server of this test, is not installed")

RECIPE = Recipe(batch=12, epochs=2, rate=0.05, checkpoint_every=6)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    served = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    served.start()
    host, port = served.get_host_and_port()
    yield f"http://{host}:{port}"
    served.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty bucket, on a server that all processes started from here find."""
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    if files.exists("bucket"):
        files.rm("bucket", recursive=True)
    files.mkdir("bucket")
    return "s3://bucket"


def test_a_run_is_saved_and_resumed(bucket: str, tmp_path: Path) -> None:
    """Half of it on one machine; the rest on another, which has nothing but the address."""
    whole = rueda.fit(tiny_task(), RECIPE, progress=False)
    where = f"{bucket}/runs/one"
    rueda.fit(tiny_task(), RECIPE.change(epochs=1), folder=tmp_path / "here", checkpoints=where, progress=False)
    assert not (tmp_path / "here" / "checkpoints").exists()
    folder = Run(tmp_path / "here").checkpoints
    assert folder == RemotePath(where) and [step_of(file) for file in list_checkpoints(folder)] == [20, 18]
    assert best_checkpoint(folder) is not None
    resumed = rueda.fit(
        tiny_task(), RECIPE, folder=tmp_path / "there", checkpoints=where, resume=True, progress=False
    )  # fmt: skip
    assert torch.equal(parameters(whole.model), parameters(resumed.model))
    assert [row.epoch for row in Run(tmp_path / "there").rows("epoch")] == [2]
    again = rueda.fit(tiny_task(), RECIPE.change(epochs=3), folder=tmp_path / "there", resume=True, progress=False)
    assert again.row is not None and again.row.step == 60  # the run itself remembers where its checkpoints are
    with pytest.raises(RunError, match="holds checkpoints of another run"):
        rueda.fit(tiny_task(), RECIPE, folder=tmp_path / "new", checkpoints=where, progress=False)


def test_damage_is_noticed_there_as_well(bucket: str) -> None:
    checkpoint = rueda.Checkpoint(f"{bucket}/own", model=network(), asynchronous=True)
    for step in (1, 2, 3):
        checkpoint.save(step)
    file = checkpoint.wait()
    assert isinstance(file, RemotePath) and len(list_checkpoints(RemotePath(f"{bucket}/own"))) == 2
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.warns(RuntimeWarning, match="truncated or damaged.*it is skipped"):
        found = latest_checkpoint(RemotePath(f"{bucket}/own"))
    assert found is not None and found[1]["place"]["step"] == 2


def test_a_mistake_is_one_line(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    checkpoint = rueda.Checkpoint("s3://nobody/own", model=network())
    with pytest.raises(RunError, match=r"cannot reach s3://nobody/own/step-00000001.*bucket") as caught:
        checkpoint.save(1)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(RunError, match=r"cannot reach s3://bucket/own: .*; check the address") as caught:
        rueda.Checkpoint(f"{bucket}/own", model=network()).resume()
    assert "\n" not in str(caught.value)
    s3fs.S3FileSystem.clear_instance_cache()


def test_two_workers_save_and_resume(bucket: str, server: str, tmp_path: Path) -> None:
    on_two(folder=tmp_path / "run", where=f"{bucket}/two", server=server)
    assert [step_of(file) for file in list_checkpoints(RemotePath(f"{bucket}/two"))] == [20, 18]


@workers(2)
def on_two(folder: Path, where: str, server: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server)
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        whole = rueda.fit(tiny_task(), RECIPE, progress=False)
        rueda.fit(tiny_task(), RECIPE.change(epochs=1), folder=folder, checkpoints=where, progress=False)
        resumed = rueda.fit(tiny_task(), RECIPE, folder=folder, resume=True, progress=False)
        assert torch.equal(parameters(whole.model), parameters(resumed.model))
