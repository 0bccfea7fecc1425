"""``rueda parallelism``: measured bytes and memory equal the predicted ones, and the parameters are one worker's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commandline import rueda, settle_in
from jobshere import fork_workers_of_jobs, run_jobs_here
from rueda.errors import ProfileError, RecipeError
from rueda.plan.parallel_forms import all_meshes
from rueda.records.parallelism import FormPrediction, MeasuredForm, Parallelism, Traffic, WorkerMemory
from rueda.records.recipe.parallel_form import Mesh
from rueda.report import write_report
from rueda.report.parallelism import bytes_table, forms_table, sentences
from rueda.study.form_jobs import recipe_of
from rueda.tasks.loading import load_task


def test_every_form_is_as_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settle_in(tmp_path, monkeypatch)
    run_jobs_here(monkeypatch)
    fork_workers_of_jobs(monkeypatch)
    words = "study clouds.py --parallelism --workers 2 --steps 5 --set micro_batches=2 --json"
    assert rueda(*words.split()) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["kind"] == "parallelism" and shown.err.endswith("; run: rueda parallelism\n")
    found = Parallelism.load(tmp_path / "runs" / "study-clouds")
    forms = {form.form: form for form in found.forms}
    assert list(forms) == ["data", "sharded", "pipeline", "tensor"] and not found.refused
    for name, form in forms.items():
        assert set(form.traffic) == set(form.predicted.traffic), name  # every byte
        assert form.memory.state == form.predicted.memory.state, name
        assert form.memory.activations == pytest.approx(form.predicted.memory.activations, rel=0.1), name
        assert form.difference is not None and form.difference < 1e-5, name
    assert forms["pipeline"].idle is not None and forms["pipeline"].schedule_idle is not None
    assert forms["pipeline"].holds == (("0",), ("3",)) and forms["data"].holds == (("0", "3"),) * 2
    assert forms["sharded"].memory.state <= 0.6 * forms["data"].memory.state
    assert (tmp_path / "runs" / "study-clouds" / "report.html").exists()


WRONG = {
    "--workers 1": "workers: expected 2 or more, got 1",
    "--steps 0": "steps: expected 1 or more, got 0",
    "--set parallel=tensor": "parallel: every form is trained and compared; leave it out of the settings",
}


def test_settings_of_pipelines_are_those_of_the_forms_that_have_one() -> None:
    settings = ("micro_batches=2", "pipeline_schedule=gpipe", "rate=0.5")
    found = {mesh.form: recipe_of(load_task("linear"), settings, mesh, workers=4) for mesh in all_meshes(4)}
    fields = {form: (one.micro_batches, one.pipeline_schedule, one.rate) for form, one in found.items()}
    assert fields["pipeline"] == fields["data 2 x pipeline 2"] == (2, "gpipe", 0.5)
    assert {fields[form] for form in fields if "pipeline" not in form} == {(None, "1f1b", 0.5)}
    assert [one.parallel for one in found.values()] == list(found)
    with pytest.raises(RecipeError, match="micro_batches: expected a whole number, got 'x'"):
        recipe_of(load_task("linear"), ("micro_batches=x",), Mesh(), workers=2)


@pytest.mark.parametrize("words", WRONG)
def test_wrong_numbers(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("parallelism", "linear", *words.split()) == 2
    assert WRONG[words] in capsys.readouterr().err


def sample() -> Parallelism:
    """Four forms of a model of four layers, made by hand."""
    layers, forms = ("tokens", "blocks.0", "blocks.1", "norm"), []
    kinds = {
        "data": [("gradients", "all-reduce", 4e6)],
        "sharded": [("parameters", "all-gather", 4e6), ("gradients", "reduce-scatter", 2e6)],
        "pipeline": [("activations", "send", 3e5)],
        "tensor": [("activations", "all-reduce", 2e6)],
    }
    for number, (name, carried) in enumerate(kinds.items()):
        traffic = tuple(Traffic(carries=what, collective=how, num_bytes=size) for what, how, size in carried)
        share = 1.0 if name == "data" else 0.5
        memory = WorkerMemory(parameters=4e6 * share, gradients=4e6 * share, optimizer=8e6 * share, activations=3e6)
        predicted = FormPrediction(
            form=name, workers=2, memory=memory, traffic=traffic, compute_seconds=0.1, step_seconds=0.1,
            images_per_second=640.0, bubble=0.2 if name == "pipeline" else 0.0,
        )  # fmt: skip
        halves = (layers[:2], layers[2:])
        forms.append(
            MeasuredForm(
                form=name, predicted=predicted, traffic=traffic, memory=memory, images_per_second=600.0 - 50 * number,
                idle=0.22 if name == "pipeline" else None, schedule_idle=0.21 if name == "pipeline" else None,
                difference=1e-7, spread=9.0,
                holds=halves if name == "pipeline" else (layers, layers),
            )
        )  # fmt: skip
    return Parallelism(
        task="text", workers=2, global_batch=64, num_steps=20, micro_batches=4, layers=layers, forms=tuple(forms),
        unit="tokens",
    )  # fmt: skip


def test_the_record_there_and_back_and_its_words(tmp_path: Path) -> None:
    found = sample()
    found.save(tmp_path / "parallelism.json")
    assert Parallelism.load(tmp_path) == found
    assert "data is the fastest, 600 tokens/s; sharded needs the least memory, 11 MB a worker" in sentences(found)[0]
    assert forms_table(found).texts[2][6].replace("\N{NO-BREAK SPACE}", " ") == "22.0 % (21.0 %, 20.0 %)"
    assert [row[:3] for row in bytes_table(found).texts] == [
        ["data", "gradients", "all-reduce"], ["sharded", "parameters", "all-gather"],
        ["sharded", "gradients", "reduce-scatter"], ["pipeline", "activations", "send"],
        ["tensor", "activations", "all-reduce"],
    ]  # fmt: skip
    page = write_report([tmp_path], tmp_path / "page.html").read_text()
    assert all(
        f'data-figure="{name}"' in page for name in ("form-a", "form-d", "form-memory", "form-bytes", "form-idle")
    )


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    text = sample().to_json().replace('"carries": "gradients"', '"carries": "love"', 1)
    with pytest.raises(ProfileError, match="expected gradients, parameters, activations or other, got 'love'"):
        Parallelism.from_json(text)
