"""``rueda.hvd.jax.DistributedOptimizer``: N workers against one at N times the batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness import workers

PAGE = Path(__file__).parents[2] / "docs" / "jax.md"
STEPS, BATCH = 20, 4


def problem(dtype: str, size: int) -> tuple[Any, Any, Any]:
    """Return the parameters of a network, its loss, and the batches of all workers, [STEPS, size * BATCH, ...]."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "hidden": (jax.random.normal(keys[0], (3, 5), dtype), jnp.zeros(5, dtype)),
        "out": jax.random.normal(keys[1], (5,), dtype),
    }
    x = jax.random.normal(keys[2], (STEPS, size * BATCH, 3), dtype)
    y = jnp.sin(x.sum(-1)) + 0.1 * jax.random.normal(keys[3], (STEPS, size * BATCH), dtype)

    def loss(params: Any, x: Any, y: Any) -> Any:
        weights, bias = params["hidden"]
        return ((jnp.tanh(x @ weights + bias) @ params["out"] - y) ** 2).mean()

    return params, loss, (x, y)


def train(optimizer: Any, params: Any, loss: Any, data: Any, *, wrap: Any) -> Any:
    import jax
    import optax

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    step, state = wrap(step), optimizer.init(params)
    for x, y in zip(*data, strict=True):
        params, state = step(params, state, x, y)
    return params


def distance(a: Any, b: Any) -> float:
    import jax
    import jax.numpy as jnp

    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), a, b)))


def shard(data: Any, rank: int) -> Any:
    return tuple(values[:, rank * BATCH : (rank + 1) * BATCH] for values in data)


def check_equal_to_one_worker(without_jit: bool) -> None:
    import jax
    import optax

    import rueda.hvd.jax as hvd

    hvd.init()
    jax.config.update("jax_disable_most_optimizations", True)  # which take longer than this training
    optimizers = {
        "sgd": optax.sgd(0.05), "momentum": optax.sgd(0.05, momentum=0.9), "adam": optax.adam(0.01),
        "lamb": optax.lamb(0.01, weight_decay=0.01),
    }  # fmt: skip

    def all_of(optimizers: dict[str, Any]) -> Any:  # each on its own parameters: compiled once for all
        def update(gradients: Any, state: Any, params: Any) -> Any:
            both = {name: each.update(gradients[name], state[name], params[name]) for name, each in optimizers.items()}
            return tuple({name: pair[number] for name, pair in both.items()} for number in (0, 1))

        return optax.GradientTransformation(
            lambda params: {name: each.init(params[name]) for name, each in optimizers.items()}, update
        )

    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-10)):
        with jax.enable_x64(dtype == "float64"):
            start, loss, data = problem(dtype, hvd.size())
            params = dict.fromkeys(optimizers, start)

            def total(params: Any, x: Any, y: Any, loss: Any = loss) -> Any:
                return sum(loss(each, x, y) for each in params.values())

            mine = shard(data, hvd.rank())
            alone = None  # computed by rank 0 alone: compilation takes most of the time
            if hvd.rank() == 0:
                alone = train(all_of(optimizers), params, total, data, wrap=jax.jit)
            wrapped = all_of({name: hvd.DistributedOptimizer(each) for name, each in optimizers.items()})
            for wrap in (jax.jit, lambda step: step)[: 1 + (without_jit and dtype == "float32")]:
                together = train(wrapped, params, total, mine, wrap=wrap)
                everybody = hvd.allgather(jax.tree.map(lambda leaf: leaf[None], together))
                assert all((leaf == leaf[:1]).all() for leaf in jax.tree.leaves(everybody))
                for name in optimizers if alone is not None else ():
                    assert distance(alone[name], start) > 0.01
                    assert distance(alone[name], together[name]) < tolerance, (name, dtype)


def check_options() -> None:
    import jax
    import jax.numpy as jnp
    import optax

    import rueda.hvd.jax as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    params, loss, data = problem("float32", size)
    mine = shard(data, rank)
    make = hvd.DistributedOptimizer
    sgd = optax.sgd(0.05)
    alone = train(sgd, params, loss, data, wrap=jax.jit)
    for options, tolerance in (
        ({"gradient_predivide_factor": 4.0}, 1e-6),
        ({"compression": hvd.Compression.fp16}, 1e-2),
        ({"compression": hvd.Compression.bf16}, 5e-2),
        ({"process_set": hvd.global_process_set}, 1e-6),
    ):
        assert distance(alone, train(make(sgd, **options), params, loss, mine, wrap=jax.jit)) < tolerance
    scaled = make(optax.sgd(0.05 / size), op=hvd.Sum)
    assert distance(alone, train(scaled, params, loss, mine, wrap=jax.jit)) < 1e-6

    # Two passes per step: as MultiSteps on all data, which sees the mean over the workers in each pass.
    multi = optax.MultiSteps(optax.adam(0.01), 2)
    expected = train(multi, params, loss, data, wrap=jax.jit)
    two = make(optax.adam(0.01), backward_passes_per_step=2)
    for wrap in (jax.jit, lambda step: step):
        assert distance(expected, train(two, params, loss, mine, wrap=wrap)) < 1e-6
    added = make(optax.sgd(0.05), backward_passes_per_step=2, average_aggregated_gradients=False)
    mean = train(optax.MultiSteps(optax.sgd(0.1), 2), params, loss, data, wrap=jax.jit)
    assert distance(mean, train(added, params, loss, mine, wrap=jax.jit)) < 1e-6

    # Passes before the last one do not communicate: a single rank makes them alone.
    if rank == 0:
        state = two.init(params)
        updates, state = jax.jit(two.update)(params, state, params)
        assert distance(updates, jax.tree.map(jnp.zeros_like, params)) == 0 and int(state.num_passes) == 1

    # A whole training in one compiled loop.
    optimizer = make(optax.adam(0.01))

    @jax.jit
    def run(params: Any, data: Any) -> Any:
        def step(carry: Any, batch: Any) -> Any:
            params, state = carry
            value, gradients = jax.value_and_grad(loss)(params, *batch)
            updates, state = optimizer.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), hvd.allreduce(value)

        return jax.lax.scan(step, (params, optimizer.init(params)), data)

    (found, _), losses = run(params, mine)
    assert distance(found, train(optax.adam(0.01), params, loss, data, wrap=jax.jit)) < 1e-6
    assert jnp.allclose(losses[0], loss(params, data[0][0], data[1][0]))

    # Adasum combines the updates; those of equal gradients are the update itself.
    adasum = make(optax.sgd(0.05), op=hvd.Adasum)
    same = tuple(values[:, :BATCH] for values in data)
    assert (
        distance(train(sgd, params, loss, same, wrap=jax.jit), train(adasum, params, loss, same, wrap=jax.jit)) < 1e-6
    )

    few = hvd.add_process_set([0])  # the other ranks train by themselves
    apart = make(sgd, process_set=few)
    assert distance(train(sgd, params, loss, mine, wrap=jax.jit), train(apart, params, loss, mine, wrap=jax.jit)) == 0
    hvd.remove_process_set(few)

    with pytest.raises(ValueError, match="expected op Average"):
        make(sgd, op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="expected more than 0"):
        make(sgd, backward_passes_per_step=0)


def check_page() -> None:
    """Run the example of the page; all ranks end with the same parameters."""
    import jax

    import rueda.hvd.jax as hvd

    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[:1]
    space: dict[str, Any] = {}
    exec(compile(example.replace("hvd.shutdown()", ""), str(PAGE), "exec"), space)
    everybody = hvd.allgather(jax.tree.map(lambda leaf: leaf[None], space["params"]))
    assert all((leaf == leaf[:1]).all() for leaf in jax.tree.leaves(everybody))
    assert float(space["loss"]) < 0.1


@pytest.mark.parametrize("check", ["check_equal_to_one_worker", "check_options", "check_page"])
@workers(2, framework="jax")
def test_two_workers(check: str) -> None:
    globals()[check](*[True] * (check == "check_equal_to_one_worker"))


@workers(3, framework="jax")
def test_three_workers() -> None:
    check_equal_to_one_worker(without_jit=False)
