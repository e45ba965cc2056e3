"""A run on several nodes: node 0 says what is run next, gathers how it went everywhere, and tells all the verdict."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import launch
from launch import Meeting, Member
from smoke import ended, nodes
from smoke.nodes import GoneError, Line
from smoke.part import GRACE, ORDERLY, PATIENCE, Here, Run

# Writes what the nodes are and the documents of all runs into the report's folder; returns the text for the terminal.
Write = Callable[[Sequence[Member], Sequence[dict[str, Any]]], str]


def run(here: Here, write: Write) -> int:
    """Meet the other nodes, do all runs, and return the verdict, the same on each node.

    Raises:
        GoneError: node 0 has ended.
        MeetingError: the nodes do not come together, or node 0 refuses this one.
        PlanError: what is asked for cannot be run on these nodes.
    """
    host, port = here.options.rendezvous
    count, wait = here.options.nodes, here.options.wait
    if here.me.node == 0:
        others = nodes.gather(port, count, here.me, patience=wait)
        with contextlib.ExitStack() as lines:
            for line in others.values():
                lines.callback(line.close)
            return _lead(here, others, write)
    line = nodes.join(
        host, port, count, here.me, patience=wait, note=lambda why: print(why, file=sys.stderr, flush=True)
    )
    with contextlib.closing(line):
        return _follow(here, line)


def _lead(here: Here, others: dict[Member, Line], write: Write) -> int:
    """Node 0: say what is run next, gather how it went everywhere, write the report, and tell the verdict."""
    members = [here.me, *others]
    documents = [] if any(member.stops for member in members) else _runs(here, others)
    text = write(members, documents)
    ok = bool(documents) and all(document["ok"] for document in documents)
    _tell(others.values(), verdict=ok, text=text)
    sys.stdout.write(text)
    return 0 if ok else 1


def _runs(here: Here, others: dict[Member, Line]) -> list[dict[str, Any]]:
    try:
        chosen, left = launch.runs(here.options.ranks, [here.me, *others])
    except launch.PlanError as e:
        _tell(others.values(), refused=str(e))
        raise
    if left:
        why = f"not a multiple of the {here.options.nodes} nodes"
        print(f"left out: {', '.join(map(str, left))} ranks, {why}", file=sys.stderr)
    address = next(iter(others.values())).address
    documents = []
    for ranks in chosen:
        order = {"ranks": ranks, "port": nodes.free_port(), "id": f"smoke-{ranks}-{nodes.token()}"}
        _tell(others.values(), **order)
        results: dict[Member, dict[str, Any]] = {}
        with Run(here, ranks, _meeting(here, order, address)) as run:
            run.wait(lambda run, results=results: _watch(run, others, results))
        _gather(others, results)
        results[here.me] = run.result()
        documents.append(ended.joined(ranks, sorted(results.items(), key=lambda one: one[0].node)))
        if any("gone" in result for result in results.values()):
            break
    return documents


def _tell(lines: Iterable[Line], **message: Any) -> None:
    for line in lines:
        with contextlib.suppress(GoneError):  # found out when its result is awaited
            line.say(**message)


def _watch(run: Run, others: dict[Member, Line], results: dict[Member, dict[str, Any]]) -> None:
    """While our own ranks run: when another node has failed or gone, ours have little time left."""
    for who, line in others.items():
        if who not in results:
            heard = _result(line, 0.0)
            if heard:
                results[who] = heard
                if heard.get("status"):
                    run.hurry()


def _result(line: Line, patience: float) -> dict[str, Any] | None:
    try:
        return line.hear(patience)
    except GoneError as e:
        return {"status": 1, "gone": str(e)}


def _gather(others: dict[Member, Line], results: dict[Member, dict[str, Any]]) -> None:
    """Our part is over: the others have a grace too, then they are told to stop, then they are given up."""
    for patience in (GRACE, 2 * ORDERLY):
        until = time.monotonic() + patience
        for who, line in others.items():
            if who not in results:
                heard = _result(line, max(0.0, until - time.monotonic()))
                if heard:
                    results[who] = heard
        _tell([line for who, line in others.items() if who not in results], stop=True)
    for who in others:
        results.setdefault(who, {"status": 1, "gone": "no answer"})


def _follow(here: Here, line: Line) -> int:
    """Another node than 0: do what node 0 says, and end with its verdict."""
    while True:
        order = line.hear(here.options.wait + PATIENCE)
        if order is None:
            raise GoneError("it says nothing any more")
        if "refused" in order:
            raise nodes.MeetingError(order["refused"])
        if "verdict" in order:
            sys.stdout.write(order["text"])
            return 0 if order["verdict"] else 1
        if "ranks" in order:  # else a `stop` that came after our end
            with Run(here, order["ranks"], _meeting(here, order, line.address)) as run:
                run.wait(lambda run: _obey(run, line))
            line.say(**run.result())


def _obey(run: Run, line: Line) -> None:
    if line.hear(0.0):  # while a run goes on, node 0 says one thing only: stop
        run.hurry(0.0)


def _meeting(here: Here, order: dict[str, Any], address: str) -> Meeting:
    return Meeting(
        nodes=here.options.nodes,
        node=here.me.node,
        host=here.options.rendezvous[0],
        port=order["port"],
        id=order["id"],
        address=address,
        patience=here.options.wait,
    )
