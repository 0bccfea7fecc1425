"""What is said about a stall: rank by rank, who waits, who is missing, and where each of them is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rueda.world.rank_names import name_ranks
from rueda.world.stall.limits import PREFIX
from rueda.world.stall.peers import Peer
from rueda.world.stall.stacks import process_state, silent_process
from rueda.world.stall.waits import Wait

_MOST_STACKS = 3


@dataclass(frozen=True, kw_only=True)
class RankState:
    """The part of one rank in a stall.

    Args:
        rank: the rank.
        missing: whether others wait for it.
        at_work: whether it answers, and is in no collective.
        declared: whether it does work that the program declared, such as a download.
        text: what it does, as the rest of a sentence that begins with the rank.
        stack: its Python stack, if that can be had.
    """

    rank: int
    missing: bool = False
    at_work: bool = False
    declared: bool = False
    text: str = ""
    stack: str = ""


def rank_states(wait: Wait, answers: dict[int, dict[str, Any]], peers: list[Peer], host: str) -> list[RankState]:
    """Return the part of each rank, from the answers of those that answered.

    Args:
        wait: the collective that is under way.
        answers: by rank; the own one included.
        peers: all workers by rank; empty if they are not known.
        host: the name of this host, whose processes can be looked at.
    """
    ranks = range(len(peers)) if peers else sorted(answers)
    return [
        _state(rank, wait, answers[rank], peers) if rank in answers else _silent(rank, peers[rank], host)
        for rank in ranks
    ]


def _silent(rank: int, peer: Peer, host: str) -> RankState:
    if peer.host != host:
        why, stack = f"nothing comes from {peer.host}: its process is stopped or has ended, or the network is down", ""
    else:
        why, stack = silent_process(peer.pid, peer.stacks)
        if process_state(peer.pid) == "T":
            why += f"; `kill -CONT {peer.pid}` lets it go on"
    return RankState(rank=rank, missing=True, text=f"does not answer: {why}", stack=stack)


def _state(rank: int, wait: Wait, answer: dict[str, Any], peers: list[Peer]) -> RankState:
    waits = answer["waits"]
    if any(key == wait.key for _, _, key in waits):
        return RankState(rank=rank, text="waits in it", stack=answer["stack"])
    if waits:
        what, seconds, _ = max(waits, key=lambda one: one[1])
        text = f"waits in another collective, for {seconds:.0f} s: {what}"
        return RankState(rank=rank, missing=True, text=text, stack=answer["stack"])
    if answer["reached"]:
        return RankState(rank=rank, text="has begun it", stack=answer["stack"])
    doing = f"runs {answer['declared']}, at" if answer["declared"] else "has not begun it: it is at"
    return RankState(
        rank=rank, missing=True, at_work=True, declared=bool(answer["declared"]), text=f"{doing} {answer['place']}",
        stack=answer["stack"],
    )  # fmt: skip


def summary(wait: Wait, seconds: float, states: list[RankState], *, brief: bool = False) -> str:
    """Return in one line which collective has waited for how long, and for whom; if ``brief``, not why.

    >>> states = [RankState(rank=0, missing=True, text="does not answer"), RankState(rank=1)]
    >>> summary(Wait(what="all_reduce", since=0.0, key=[]), 61.0, states)
    'all_reduce has waited 61 s for rank 0, which does not answer'
    """
    missing = [state for state in states if state.missing]
    if not missing:
        return f"{wait.what} has waited {seconds:.0f} s although all ranks have begun it; is their network broken?"
    why = f", which {missing[0].text}" if len(missing) == 1 and not brief else ""
    return f"{wait.what} has waited {seconds:.0f} s for {name_ranks([state.rank for state in missing])}{why}"


def report(
    wait: Wait, seconds: float, own: int, states: list[RankState], peers: list[Peer], timeout: float, dumps: str = ""
) -> str:
    """Return the whole report.

    Args:
        wait: the collective that is under way.
        seconds: for how long.
        own: the rank that reports.
        states: the part of each rank.
        peers: all workers by rank; empty if they are not known.
        timeout: when the job will end, in seconds since the collective began; 0: never.
        dumps: where the flight recorders are written; empty: nowhere.
    """
    begun = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
    lines = [f"{summary(wait, seconds, states, brief=True)}, since {begun}"]
    by_text: dict[str, list[int]] = {}
    for state in sorted(states, key=lambda state: not state.missing):
        where = f" (process {peers[state.rank].pid} on {peers[state.rank].host})" if state.missing and peers else ""
        by_text.setdefault(f"{where}: {state.text}", []).append(state.rank)
    lines += [f"  {name_ranks(ranks)}{text}" for text, ranks in by_text.items()]
    if not peers:
        lines.append("  the other ranks are not known: the store of rank 0 did not answer at the start")
    lines += [f"  {dumps}"] * bool(dumps)
    lines.append(f"  the job ends after {timeout:.0f} s (--stall-timeout)" if timeout else "  it is waited for ever")
    told = [state for state in states if state.missing][:_MOST_STACKS]
    told += [state for state in states if state.rank == own and state not in told]
    for state in told:
        if state.stack:
            lines.append(f"Python stack of rank {state.rank}{'' if state.missing else ', which waits'}:")
            lines += [f"  {line}" for line in state.stack.splitlines()]
        else:
            lines.append(f"Python stack of rank {state.rank}: none")
    return "".join(f"{PREFIX}{line}\n" for line in lines)
