"""The BFCL environment: a task's turns, its backends behind a parser, and the reward.

Two protocols. "merged" is RC-GRPO's: one user message of numbered steps, the episode ends at
`done()`. "turns" is BFCL's: a message without calls ends a turn and brings the next user message.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rc_lib.envs.base import Message
from rc_lib.envs.calls import CallError, NoCalls, parse_calls
from rc_lib.envs.execution import ERROR, Instances, undefined
from rc_lib.envs.reference import NEVER, execute_reference
from rc_lib.tasks.base import Task
from rc_lib.tasks.bfcl import function_docs

# bfcl-eval, constants/default_prompts.py
STEPS_PER_TURN = 20
NEW_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
# RC-GRPO, the task prompt
MERGED_END = (
    "Complete all the steps above using the available tools. "
    "Call done() when you have finished all tasks."
)


def merged_prompt(task: Task) -> str:
    """All turns as one user message.

    Source: RC-GRPO's task prompt.

    Example:
        >>> print(merged_prompt(Task("t", "base", ("Go home.", ""), {}, (), ((), ()))))
        Step 1: Go home.
        Step 2: I have updated some more functions you can choose from. What about now?
        Complete all the steps above using the available tools. Call done() when you have finished \
all tasks.
    """
    steps = [f"Step {i + 1}: {text or NEW_FUNCTIONS}" for i, text in enumerate(task.turns)]
    return "\n".join([*steps, MERGED_END])


class BFCLEnv:
    """One episode of a BFCL task, or of one generated on its backends.

    Source: reward of RC-GRPO App. D; verdict of BFCL's `multi_turn_checker`.

    Deviation: under "merged" there are no turn boundaries, so withheld functions may be called
    from the start (only excluded ones are barred) and `official` judges the whole trajectory as
    one turn: the final state equals the reference's and each reference turn's results all occur.

    Deviation: BFCL's executor runs withheld and excluded functions; here they do not exist until
    their turn, unless the task's own reference calls them earlier (multi_turn_miss_func_49).

    Args:
        task: never changed; rollouts of one task share its reference, and nothing else.
        protocol: "merged" or "turns".
        system_prompt: the first message, e.g. `rc_lib.tasks.bfcl.system_prompt(task)`; None: no
            such message. With one, "turns" shows the documents of functions that appear later.
        max_steps: assistant messages in the episode ("merged"), or with calls in a turn ("turns").
            Twenty is BFCL's limit a turn; RC-GRPO states none.
        observation_chars: a longer observation is cut, with a visible mark.
        bar_functions: False runs withheld and excluded functions as BFCL's executor does.
    Raises:
        ValueError: for an unknown protocol or a limit below 1.

    Example:
        >>> task = Task("t", "base", ("Add 1 and 2.",), {}, ("MathAPI",), (("add(a=1, b=2)",),))
        >>> env = BFCLEnv(task)
        >>> messages, info = env.reset()
        >>> env.step("[add(1, 2.0)]")[0]
        [Message(role='tool', content='{"result": 3.0}')]
        >>> env.step("done()")[1:4]
        (1.0, True, False)
        >>> env.reward()
        {'reward': 1.0, 'state': 1.0, 'action': 1.0, 'official': 0.0, 'strict': 0.0}
    """

    def __init__(
        self,
        task: Task,
        *,
        protocol: str = "merged",
        system_prompt: str | None = None,
        max_steps: int = STEPS_PER_TURN,
        observation_chars: int = 8_000,
        bar_functions: bool = True,
    ) -> None:
        if protocol not in ("merged", "turns"):
            raise ValueError(f"protocol {protocol!r} is not 'merged' or 'turns'")
        if max_steps < 1 or observation_chars < 1:
            raise ValueError(f"{max_steps=} and {observation_chars=} must be at least 1")
        self.task = task
        self.protocol = protocol
        self.system_prompt = system_prompt
        self.max_steps = max_steps
        self.observation_chars = observation_chars
        self._reference = execute_reference(task)
        barred = self._reference.barred if bar_functions else {}
        merged = protocol == "merged"
        self._barred = {n: turn for n, turn in barred.items() if turn == NEVER or not merged}
        self.instances: Instances | None = None  # the backends, from reset on
        self._over = True

    def reset(self) -> tuple[list[Message], dict[str, Any]]:
        """Start the episode afresh; returns the opening messages."""
        self.instances = Instances(self._reference.start)
        self._calls: list[tuple[str, dict[str, Any]]] = []  # those that ran, arguments by name
        self._results: Counter[str] = Counter()
        self._turn = 0
        self._steps = 0  # of the turn, or of the episode where merged
        self._turn_has_calls = False
        self._passed = self._abstained = True  # in all turns that have ended
        self._over = self._finished = False
        self._parts: dict[str, float] | None = None
        opening = [Message("system", self.system_prompt)] if self.system_prompt else []
        return [*opening, self._user_message()], {"turn": 0}

    def step(self, action: str) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """Take one assistant message and run its calls.

        Returns:
            Messages to append (one tool message, a result a line; or the next user message),
            the reward (0.0 before the end), terminated, truncated (too many steps), and info:
            turn, calls (as parsed), results (uncut) and error (why text was not understood).
        Raises:
            RuntimeError: before `reset` or after the end.
        """
        if self._over:
            raise RuntimeError(f"the episode of task {self.task.id} is over; call reset()")
        self._parts = None
        info: dict[str, Any] = {"turn": self._turn, "calls": (), "results": [], "error": None}
        try:
            info["calls"] = parse_calls(action)
        except CallError as error:
            info["error"] = str(error)
            if isinstance(error, NoCalls) and self.protocol == "turns":
                return self._next_turn(info)
            info["results"] = [f"{ERROR}{error}"]
        else:
            info["results"] = self._run(info["calls"])
        self._steps += 1
        truncated = not self._finished and self._steps >= self._step_limit()
        self._over = self._finished or truncated
        reward = self.reward()["reward"] if self._over else 0.0
        observation = [] if self._finished else [Message("tool", self._shown(info["results"]))]
        return observation, reward, self._finished, truncated, info

    def reward(self) -> dict[str, float]:
        """The score of the episode so far.

        Returns:
            state: 1 where all public attributes of the backends equal the reference's at its end.
            action: 1 where each reference call has a call of the same name whose arguments contain
                its arguments with equal values. A call that was refused is none.
            reward: state * action.
            official: BFCL's verdict; 0 unless the episode has terminated, as BFCL fails a model
                that does not stop.
            strict: official, and no call in any turn without reference calls (under "merged":
                none if the whole reference has no calls).
        Raises:
            RuntimeError: before `reset`.
        """
        if self.instances is None:
            raise RuntimeError(f"task {self.task.id} has no episode yet; call reset()")
        if self._parts is None:
            reference = self._reference
            last = reference.turns[-1]
            state = self.instances.same_state(last.states, last.untouched)
            action = reference.covered_by(self._calls)
            official, strict = self._verdicts(state)
            self._parts = {
                "reward": float(state and action),
                "state": float(state),
                "action": float(action),
                "official": float(official),
                "strict": float(strict),
            }
        return dict(self._parts)

    def _run(self, calls: tuple) -> list[str]:
        """Run calls in order; where merged, `done()` ends the episode and what follows it."""
        results = []
        for call in calls:
            if self.protocol == "merged" and call == ("done", (), {}):
                self._finished = True
                break
            if self._turn < self._barred.get(call.name, 0):
                result = undefined(call.name)
            else:
                result = self.instances.run(call)
            results.append(result.text)
            if result.arguments is not None:
                self._calls.append((call.name, result.arguments))
        if results:
            self._turn_has_calls = True
            self._results.update(results)
        return results

    def _next_turn(self, info: dict[str, Any]) -> tuple[list[Message], float, bool, bool, dict]:
        """End the turn, judge it as BFCL's checker does, and go on to the next."""
        wanted = self._reference.turns[self._turn]
        if wanted.results:
            self._passed = self._passed and (
                self._turn_has_calls
                and self._have(wanted.counts)
                and self.instances.same_state(wanted.states, wanted.untouched)
            )
        elif self._turn_has_calls:
            self._abstained = False
        self._turn += 1
        self._steps = 0
        self._turn_has_calls = False
        if self._turn < len(self.task.turns):
            return [self._user_message()], 0.0, False, False, info
        self._over = self._finished = True
        return [], self.reward()["reward"], True, False, info

    def _verdicts(self, state: bool) -> tuple[bool, bool]:
        """The official and the strict verdict; `state`: the final state is the reference's."""
        if self.protocol == "turns":
            official = self._finished and self._passed
            return official, official and self._abstained
        has_reference = any(turn.results for turn in self._reference.turns)
        official = (
            self._finished
            and state
            and (self._turn_has_calls or not has_reference)
            and all(self._have(turn.counts) for turn in self._reference.turns)
        )
        return official, official and (has_reference or not self._turn_has_calls)

    def _have(self, wanted: Counter[str]) -> bool:
        """Whether all wanted results are among those so far, each as often as wanted."""
        return all(self._results[text] >= count for text, count in wanted.items())

    def _step_limit(self) -> int:
        # BFCL runs the calls of one step more than its limit, and then gives up.
        return self.max_steps + (self.protocol == "turns")

    def _user_message(self) -> Message:
        if self.protocol == "merged":
            return Message("user", merged_prompt(self.task))
        text = self.task.turns[self._turn]
        if not text:
            text = NEW_FUNCTIONS
            if self.system_prompt and self._turn in self.task.missed_function:
                text = f"{function_docs(self.task, turn=self._turn)}\n{text}"
        return Message("user", text)

    def _shown(self, results: list[str]) -> str:
        """One result a line, each with an equal share of the characters."""
        share = self.observation_chars // max(1, len(results))
        lines = (result.replace("\n", "\\n") for result in results)
        return "\n".join(
            line
            if len(line) <= share
            else f"{line[:share]}... [cut: {len(line)} characters in all]"
            for line in lines
        )
