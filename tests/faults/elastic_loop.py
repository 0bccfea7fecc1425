"""A script for ``rueda run --min-np``: it survives through ``rueda.world.elastic``, and counts what it trained on."""

from __future__ import annotations

import copy
import os
import time
from pathlib import Path

import torch

import rueda
from faults import points
from faults.injected import VARIABLE, Worker, generation
from faults.plan import PAUSE_SECONDS
from rueda.world import elastic


def main() -> None:
    worker = Worker(Path(os.environ[VARIABLE]))
    elastic.register()
    world = rueda.init(seed=0)
    torch.set_num_threads(1)
    model, (inputs, targets) = points.network(), points.data()
    state = {"step": 0, "model": model.state_dict(), "counts": torch.zeros(points.NUM)}
    committed = copy.deepcopy(state)
    ended = False
    while not ended:
        try:
            with elastic.guard():
                state = world.broadcast_object(state)
                model.load_state_dict(state["model"])
                state["model"] = model.state_dict()
                step, counts = state["step"], state["counts"]
                worker.enter(world.rank, world.size, step)
                while True:
                    mine = points.batch_of(step)[world.rank :: world.size]
                    own = points.gradient(model, inputs[mine], targets[mine])
                    seen = torch.zeros(points.NUM, dtype=own.dtype)
                    seen[mine] += 1
                    total = world.all_reduce(torch.cat([own, seen]))
                    points.update(model, total[: len(own)])
                    counts += total[len(own) :]
                    step += 1
                    elastic.progress(step)
                    if world.is_main:
                        worker.note("step", step=step, size=world.size, generation=generation())
                    worker.obey(world.rank, {"model": model})
                    time.sleep(PAUSE_SECONDS)
                    if step % 5 == 0:
                        state.update(step=step)
                        committed = copy.deepcopy(state)
                        enough = step % points.STEPS_PER_EPOCH == 0 and (worker.control / "enough").exists()
                        flags = torch.tensor([elastic.updates(), int(enough and world.is_main)])
                        updates, stops = world.all_reduce(flags, "max").tolist()
                        if stops:
                            ended = True
                            break
                        if updates:
                            world = elastic.reform(failed=False, step=step)
                            break
        except elastic.PeerLost:
            state = copy.deepcopy(committed)
            world = elastic.reform(failed=True, step=state["step"])
    worker.note("ended", rank=world.rank, size=world.size, step=step)
    if world.is_main:
        epochs = step // points.STEPS_PER_EPOCH
        few, many = (epochs - counts).clamp(min=0).sum(), (counts - epochs).clamp(min=0).sum()
        result = {"step": step, "lost": int(few), "twice": int(many), "accuracy": points.accuracy(model)}
        torch.save({**result, "model": points.vector(model)}, worker.control / "result.pt")
    rueda.finish()


if __name__ == "__main__":
    main()
