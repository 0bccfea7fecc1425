"""Parallel forms against closed forms by hand: memory, bytes, bubble, time, and which is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan.profiles import profile, step
from rueda.errors import ProfileError
from rueda.plan.cluster import Cluster, Link
from rueda.plan.compute import launch_seconds
from rueda.plan.form_choice import best_form, compare_forms, predict_form, reason
from rueda.plan.parallel_forms import Schedule, cut_into_stages, worker_memory
from rueda.records.model_layers import LayerWork
from rueda.records.parallelism import FormPrediction
from rueda.records.profile import Profile, StepWork
from rueda.records.recipe.parallel_form import Mesh

ROOM = Link(latency=0.0, bandwidth=1e9)
BOX = Cluster(name="box", devices_per_node=4, max_nodes=1, inside=ROOM, speed=1.0, jitter=0.0, memory=1e9)
WIDTH = 1000
MATRIX = 4 * WIDTH * WIDTH
"""bytes of one layer: a square matrix"""


def layer(name: str, *, split: bool = True, flops: float = 1.0) -> LayerWork:
    return LayerWork(
        name=name, shapes=((WIDTH, WIDTH),), output_bytes=4 * WIDTH, saved_bytes=8 * WIDTH, flops=flops,
        split_flops=flops if split else 0.0, split_parameters=WIDTH * WIDTH if split else 0,
        split_saved_bytes=4 * WIDTH if split else 0, exchanged_bytes=8 * WIDTH if split else 0,
    )  # fmt: skip


def model(num_layers: int = 4, *, seconds: float = 0.64, **options: bool) -> Profile:
    """A profile whose step takes 10 ms an example and whose optimizer is Adam's."""
    layers = tuple(layer(str(number), **options) for number in range(num_layers))
    parameters = sum(one.parameters for one in layers)
    work = StepWork(flops=1.0, saved_bytes=1.0, update_bytes=4 * 4 * parameters)
    return profile([step(64, seconds), step(1, seconds / 64)], parameters=parameters, layers=layers, work=work)


def bytes_of(found: FormPrediction) -> dict[str, float]:
    return {f"{one.carries}: {one.collective}": one.num_bytes for one in found.traffic}


def test_data() -> None:
    found = predict_form(model(), BOX, Mesh(data=4), batch=64)
    size = 4 * MATRIX
    memory = found.memory
    assert (memory.parameters, memory.gradients, memory.optimizer, memory.gathered) == (size, size, 2 * size, 0)
    assert memory.activations == 16 * 4 * 8 * WIDTH
    assert bytes_of(found) == {"gradients: all-reduce": 2 * 3 / 4 * size}
    assert found.compute_seconds == pytest.approx(0.16)
    assert found.communication_seconds == pytest.approx(1.5 * size / 1e9)


def test_sharded_divides_the_state_and_sends_half_as_much_again() -> None:
    found = predict_form(model(), BOX, Mesh(sharded=4), batch=64)
    size = 4 * MATRIX
    assert found.memory.state == 4 * size / 4 and found.memory.gathered == 2 * MATRIX
    assert found.memory.activations == 16 * 4 * 8 * WIDTH
    assert bytes_of(found) == {
        "parameters: all-gather": 2 * 3 / 4 * size, "gradients: reduce-scatter": 3 / 4 * size
    }  # fmt: skip
    assert found.communication_seconds == pytest.approx(3 * 0.75 * size / 1e9)


def test_sharded_bytes_have_the_padding_of_uneven_rows() -> None:
    odd = LayerWork(name="0", shapes=((10, 7), (10,)), output_bytes=4, saved_bytes=4, flops=1)
    found = predict_form(profile([step(8, 0.1)], layers=(odd,)), BOX, Mesh(sharded=4), batch=8)
    padded = 4 * (12 * 7 + 12)
    assert bytes_of(found) == {"parameters: all-gather": 1.5 * padded, "gradients: reduce-scatter": 0.75 * padded}


@pytest.mark.parametrize(("schedule", "in_flight"), [(Schedule(8), 2), (Schedule(8, is_1f1b=False), 8)])
def test_pipeline(schedule: Schedule, in_flight: int) -> None:
    found = predict_form(model(), BOX, Mesh(pipeline=2), batch=64, schedule=schedule)
    assert found.memory.state == 4 * 2 * MATRIX and found.memory.gathered == 0
    assert found.memory.activations == in_flight * 8 * 2 * 8 * WIDTH  # micro-batches x examples x layers x saved
    assert found.bubble == 1 / 9
    assert bytes_of(found) == {"activations: send": 64 * 4 * WIDTH}  # one cut, there and back, over two workers
    sends = 8 * 4 * WIDTH / 1e9
    assert found.step_seconds == pytest.approx(9 * 0.08 / 2 + 2 * sends)
    assert found.compute_seconds == pytest.approx(8 * 0.08 / 2)


def test_a_slow_link_makes_the_slots_of_a_pipeline_longer() -> None:
    slow = Cluster(name="slow", devices_per_node=1, between=Link(latency=0.5, bandwidth=1e9), speed=1.0)
    found = predict_form(model(), slow, Mesh(pipeline=2), batch=64, schedule=Schedule(4))
    one_send = 0.5 + 16 * 4 * WIDTH / 1e9
    assert found.step_seconds == pytest.approx(5 * 2 * one_send + 2 * one_send)


def test_tensor() -> None:
    found = predict_form(model(), BOX, Mesh(tensor=4), batch=64)
    assert found.memory.state == 4 * 4 * MATRIX / 4
    assert found.memory.activations == 64 * 4 * (4 * WIDTH + 4 * WIDTH / 4)
    exchanged = 64 * 4 * 8 * WIDTH
    assert bytes_of(found) == {"activations: all-reduce": 1.5 * exchanged}
    assert found.step_seconds == pytest.approx(0.64 / 4 + 1.5 * exchanged / 1e9)


def test_tensor_has_the_launches_of_one_worker() -> None:
    fast = replace(BOX, speed=1e9)  # a step there is as long as the host takes to launch it
    found = predict_form(model(), fast, Mesh(tensor=4), batch=64)
    assert found.compute_seconds == pytest.approx(launch_seconds(model()))
    cut = predict_form(model(), fast, Mesh(pipeline=2, data=2), batch=64, schedule=Schedule(4))
    assert cut.compute_seconds == pytest.approx(4 * launch_seconds(model()) / 2)  # 4 micro-batches of half the layers


def test_layers_without_a_plan_stay_whole() -> None:
    layers = (layer("0", split=False), layer("1"))
    mixed = profile([step(64, 0.64)], layers=layers)
    found = predict_form(mixed, BOX, Mesh(tensor=4), batch=64)
    assert found.memory.parameters == MATRIX * (1 + 1 / 4)
    assert found.compute_seconds == pytest.approx(0.64 * (1 / 2 + 1 / 8))


def test_a_combination_multiplies() -> None:
    found = predict_form(model(), BOX, Mesh(data=2, tensor=2), batch=64)
    size = 4 * MATRIX
    assert found.form == "data 2 x tensor 2" and found.memory.parameters == size / 2
    assert bytes_of(found) == {
        "gradients: all-reduce": 2 * 1 / 2 * size / 2, "activations: all-reduce": 32 * 4 * 8 * WIDTH
    }  # fmt: skip
    sharded = predict_form(model(), BOX, Mesh(sharded=2, tensor=2), batch=64)
    assert sharded.memory.state == 4 * size / 4


def test_replicas_far_apart_share_the_links_between_nodes() -> None:
    wide = Cluster(
        name="wide", devices_per_node=2, inside=ROOM, between=Link(latency=0, bandwidth=1e8), speed=1.0, jitter=0.0
    )  # fmt: skip
    found = predict_form(model(), wide, Mesh(data=2, tensor=2), batch=64)
    gradients = 4 * MATRIX / 2 / (1e8 / 2)  # half the model over half the link
    activations = 32 * 4 * 8 * WIDTH / 1e9
    assert found.communication_seconds == pytest.approx(gradients + activations)


def test_stages_are_balanced_by_flops() -> None:
    layers = [layer(str(number), flops=flops) for number, flops in enumerate((4, 1, 1, 1, 1))]
    assert [[one.name for one in stage] for stage in cut_into_stages(layers, 2)] == [["0"], ["1", "2", "3", "4"]]
    with pytest.raises(ProfileError, match="at most 5, one a layer, got 6"):
        cut_into_stages(layers, 6)


def test_the_most_loaded_worker_decides() -> None:
    heavy = LayerWork(name="1", shapes=((100, 10),), output_bytes=0, saved_bytes=0, flops=1)
    light = LayerWork(name="0", shapes=((10,),), output_bytes=0, saved_bytes=0, flops=1)
    found = predict_form(profile([step(8, 0.1)], layers=(light, heavy)), BOX, Mesh(pipeline=2), batch=8)
    assert found.memory.parameters == 4000


def timed(**milliseconds: float) -> list[FormPrediction]:
    """Return forms of four workers with steps of these times, all of which fit."""
    one = predict_form(model(), BOX, Mesh(data=4), batch=64)
    forms = {form.replace("_", " "): value / 1e3 for form, value in milliseconds.items()}
    return [replace(one, form=form, step_seconds=seconds, fits=True) for form, seconds in forms.items()]


CHOICES = {
    "data, as fast as any": ({"data": 2.0, "sharded": 2.5}, "data"),
    "data, 2 % slower": ({"data": 2.61, "sharded": 2.57}, "data"),
    "data, 14 % slower, behind others": ({"tensor": 1.0, "sharded": 1.1, "data": 1.14}, "data"),
    "data, clearly slower": ({"data": 1.2, "tensor": 1.0}, "tensor"),
    "the simplest of those that are faster": ({"data": 2.0, "pipeline": 1.0, "sharded": 1.1}, "sharded"),
    "one form before two": ({"data_2_x_sharded_2": 1.0, "sharded": 1.1}, "sharded"),
}


@pytest.mark.parametrize(("steps", "wanted"), CHOICES.values(), ids=list(CHOICES))
def test_a_form_is_chosen_only_if_it_is_faster_by_more_than_the_error(steps: dict[str, float], wanted: str) -> None:
    chosen = best_form(timed(**steps))
    assert chosen is not None and chosen.form == wanted


def test_the_reason_names_the_faster_form_and_the_error() -> None:
    text = reason(timed(data=2.61, sharded=2.57), model(), BOX)
    assert text.startswith(
        "data: 2.61 ms a step; sharded takes 2.57 ms, but predictions less than 15 % apart may be wrong by as much, so "
        "the simpler form is taken; a worker holds "
    )
    assert "predictions" not in reason(timed(data=2.0, sharded=2.5), model(), BOX)
    assert "; data takes 1.2 ms, 20 % more; " in reason(timed(data=1.2, tensor=1.0), model(), BOX)


def test_data_is_not_chosen_where_it_does_not_fit_even_if_it_is_faster() -> None:
    data, sharded = timed(data=1.0, sharded=2.0)
    chosen = best_form([replace(data, fits=False), sharded])
    assert chosen is sharded


def test_sharded_is_chosen_where_data_does_not_fit() -> None:
    measured = model(40, split=False)
    small = replace(BOX, memory=1.2 * 40 * MATRIX * 2)
    found, refused = compare_forms(measured, small, workers=4, batch=4)
    by_name = {form.form: form for form in found}
    assert by_name["data"].fits is False and by_name["sharded"].fits
    assert refused == [("tensor", "no layer of this model has a tensor-parallel plan")]
    text = reason(found, measured, small)
    assert "data does not fit (640 MB a worker)" in text, text
    nothing = replace(BOX, memory=1e6)
    found, _ = compare_forms(measured, nothing, workers=4, batch=4)
    assert best_form(found) is None and reason(found, measured, nothing).startswith("no form fits: ")


WRONG = {
    "no layers": (profile([step(8, 0.1)]), Mesh(data=2), 8, "the layers of the model, got 'none'; measure it again"),
    "nothing to split": (model(split=False), Mesh(tensor=2), 8, "a layer that can be split"),
    "a small batch": (model(), Mesh(data=4), 2, "4 or more, one a replica, got 2"),
}


@pytest.mark.parametrize(("given", "mesh", "batch", "message"), WRONG.values(), ids=list(WRONG))
def test_what_cannot_be(given: Profile, mesh: Mesh, batch: int, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        predict_form(given, BOX, mesh, batch=batch)


def test_memory_of_sharded_is_at_most_0_6_of_data_for_many_layers() -> None:
    layers = [layer(str(number)) for number in range(24)]
    data, sharded = (
        worker_memory(layers, mesh, examples=0, state_per_parameter=2) for mesh in (Mesh(data=2), Mesh(sharded=2))
    )
    assert sharded.state == data.state / 2 and sharded.total <= 0.6 * data.total
