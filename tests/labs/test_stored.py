"""The results that the labs ship are those of the repository."""

from __future__ import annotations

import json

import pytest

from labs.stored_results import ROOT, STORED, all_of_them
from rueda.errors import LabError
from rueda.labs import stored


def test_stored_results_equal_those_in_the_repository() -> None:
    for name, expected in all_of_them().items():
        found = json.loads((STORED / f"{name}.json").read_text(encoding="utf-8"))
        assert found == expected, f"{name}: run python tests/labs/stored_results.py"


def test_every_stored_result_says_where_it_is_from() -> None:
    for name in all_of_them():
        assert (ROOT / stored.origin(name)).is_file()
        commit = stored.provenance(name).get("commit") or ""
        assert commit.removesuffix("+") in stored.line(name)
        assert ("differed" in stored.line(name)) == commit.endswith("+")


def test_an_unknown_result_is_refused_with_a_suggestion() -> None:
    with pytest.raises(LabError, match="study-glyphs-8-workers"):
        stored.path("study-glyphs-8-worker")
