from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from realdata import real_data
from rueda.cli.data import data_app
from rueda.errors import DataError


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RUEDA_DATA", raising=False)
    monkeypatch.setenv("RUEDA_CACHE", str(tmp_path / "cache"))


def test_list_says_what_is_not_here(tmp_path: Path) -> None:
    found = CliRunner().invoke(data_app, ["list", "--json"])
    assert found.exit_code == 0
    states = {row["name"]: row["state"] for row in json.loads(found.output)}
    assert states["glyphs"] == "generated"
    assert states["cifar-10"] == "not here"


def test_get_takes_a_set_from_a_folder_and_list_finds_it(tmp_path: Path) -> None:
    found = CliRunner().invoke(data_app, ["get", "fashion-mnist", "--from", str(real_data())])
    assert found.exit_code == 0, found.output
    assert "verified" in found.output
    listed = CliRunner().invoke(data_app, ["list"]).output
    assert f"fashion-mnist  verified  {tmp_path / 'cache' / 'fashion-mnist'} (cache)" in listed
    (tmp_path / "cache" / "fashion-mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"torn")
    assert "damaged" in CliRunner().invoke(data_app, ["list"]).output


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    for arguments in (["get", "mnist"], ["get", "cifar-10", "--from", str(tmp_path / "nowhere")]):
        found = CliRunner().invoke(data_app, arguments)
        assert isinstance(found.exception, DataError)
        assert "\n" not in str(found.exception)
