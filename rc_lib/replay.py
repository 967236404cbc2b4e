"""Play logged messages again in a fresh environment, and watch the state around each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.envs.calls import Call, Refused
from rc_lib.envs.changes import changes


class Ran(NamedTuple):
    """One call of a message: its text, what the tool said (None: nothing), what it changed."""

    call: str
    result: str | None
    changed: list[tuple[str, Any, Any]]


def replay(env: BFCLEnv, texts: Sequence[str]) -> list[list[Ran]]:
    """Play assistant messages in a fresh environment and watch the state around each call.

    Args:
        env: of the rollout's task; reset here.
        texts: the messages, as the environment got them.

    Returns:
        For each message its calls, in order. A message that is not understood is one of them, with
        the error as its result; ``done()`` and what follows it have no result.

    >>> from rc_lib.tasks.base import Task
    >>> env = BFCLEnv(Task("t", "base", ("",), {}, ("TicketAPI",), (("logout()",),)))
    >>> replay(env, ["[ticket_login('ann', 'x')]", "[done()]"])[0][0].changed
    [('TicketAPI.current_user', None, 'ann')]
    """
    env.reset()
    run, seen = env.instances.run, []

    def watched(call):
        before = changes(env.instances)
        result = run(call)
        seen.append((call, differences(before, changes(env.instances))))
        return result

    env.instances.run = watched
    played = []
    for text in texts:
        seen.clear()
        *_, info = env.step(text)
        if info["error"] is not None:
            played.append([Ran(text, info["results"][0], [])])
            continue
        changed = {id(call): rows for call, rows in seen}
        played.append(
            [
                Ran(_call_text(call), result, changed.get(id(call), []))
                for call, result in zip_longest(info["calls"], info["results"])
            ]
        )
    return played


def _call_text(call: Call | Refused) -> str:
    return call.text() if isinstance(call, Call) else f"{call.name}(...)"


def differences(before: Mapping, after: Mapping) -> list[tuple[str, Any, Any]]:
    """Return what differs between two `changes` of one task, as (path, before, after).

    >>> differences({"A.x": [1, 2]}, {"A.x": [1, 3], "A.y": [None, "new"]})
    [('A.x', 2, 3), ('A.y', None, 'new')]
    >>> differences({"A.x": [1, 2]}, {})  # back to the start
    [('A.x', 2, 1)]
    """
    rows = []
    for path in dict.fromkeys([*before, *after]):
        start = (before.get(path) or after.get(path))[0]
        pair = [now[path][1] if path in now else start for now in (before, after)]
        if pair[0] != pair[1]:
            rows.append((path, *pair))
    # A container is listed only where it is empty; its entries say the same.
    return [row for row in rows if not any(other[0].startswith(f"{row[0]}/") for other in rows)]
