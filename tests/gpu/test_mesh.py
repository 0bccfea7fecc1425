"""Rank r of 1,024, alone, in each form whose model is divided: start-up, memory and bytes of a step of ``Training``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from forked import forked
from gpu.rank_of_many import BATCH, CUT, recipe, task
from rueda.measure.layers import layers_of_training
from rueda.plan.parallel_forms import Schedule, traffic_of, worker_memory
from rueda.records.model_layers import LayerWork
from rueda.records.parallelism import WorkerMemory
from rueda.records.recipe.parallel_form import mesh_of
from rueda.study.form_traffic import mean_traffic
from rueda.study.parallelism import stages_of
from rueda.train.training import Training
from rueda.world import World

CODE = Path(__file__).with_name("rank_of_many.py").read_text()
SIZE = 1024
FORMS = ["sharded", "data 64 x sharded 16", "data 128 x tensor 8", "sharded 128 x tensor 8"]


def as_ranks(cases: list[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Be each of some ranks in a process of its own: form, rank, number of ranks."""
    found = []
    for form, rank, size in cases:
        variables = {**os.environ, "RUEDA_TRANSPORT": "gloo"}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            variables.pop(name, None)
        with forked(CODE, [variables], form, str(rank), str(size)) as (process,):
            status, output, errors = process.wait()
        assert status == 0, errors
        found.append(json.loads(output.splitlines()[-1]))
    return found


@pytest.fixture(scope="module")
def layers() -> tuple[LayerWork, ...]:
    return layers_of_training(Training(task(BATCH), recipe("data", 1), World()), BATCH)


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_sends_and_holds_what_is_predicted(form: str, layers: tuple[LayerWork, ...]) -> None:
    (found,) = as_ranks([(form, SIZE - 1, SIZE)])
    mesh = mesh_of(form, SIZE)
    predicted = traffic_of([layers], mesh, examples=BATCH)
    assert found["sent"] == {f"{one.carries}: {one.collective}": one.num_bytes for one in predicted}
    memory = WorkerMemory(**found["memory"])
    expected = worker_memory(layers, mesh, examples=BATCH, state_per_parameter=2)
    assert (memory.state, memory.gathered) == (expected.state, expected.gathered)
    assert memory.activations == pytest.approx(expected.activations, rel=0.01)


def test_the_ranks_of_a_pipeline_send_and_hold_what_is_predicted(layers: tuple[LayerWork, ...]) -> None:
    form = "data 256 x pipeline 4"
    mesh, stages = mesh_of(form, SIZE), stages_of(layers, [2] * len(CUT))
    found = as_ranks([(form, rank, SIZE) for rank in range(SIZE - mesh.pipeline, SIZE)])
    sent = [
        {cast("tuple[str, str]", tuple(key.split(": "))): value for key, value in one["sent"].items()} for one in found
    ]
    assert set(mean_traffic(sent)) == set(traffic_of(stages, mesh, examples=BATCH))
    for number, (one, stage) in enumerate(zip(found, stages, strict=True)):
        memory = WorkerMemory(**one["memory"])
        expected = worker_memory(
            stage, mesh, examples=1, state_per_parameter=2, in_flight=Schedule(BATCH).in_flight(mesh.pipeline, number)
        )
        assert (memory.state, memory.gathered) == (expected.state, expected.gathered)
        assert memory.activations == pytest.approx(expected.activations, rel=0.01), number


def test_all_ranks_cost_the_same_and_start_as_fast_as_one_of_eight() -> None:
    few, first, last = as_ranks([("sharded", 0, 8), ("sharded", 0, SIZE), ("sharded", SIZE - 1, SIZE)])
    assert first["sent"] == last["sent"] and first["memory"] == last["memory"]
    assert few["memory"]["parameters"] == SIZE // 8 * first["memory"]["parameters"]
    for one in (first, last):
        assert one["seconds"] < few["seconds"] + 2.0  # seconds of the processor


def test_the_last_rank_of_a_pipeline_starts_as_fast_as_one_of_eight() -> None:
    few, many = as_ranks([("data 2 x pipeline 4", 7, 8), ("data 256 x pipeline 4", SIZE - 1, SIZE)])
    assert many["seconds"] < few["seconds"] + 2.0  # seconds of the processor
