"""A solved question as a demonstration, and the prompt that carries demonstrations.

Source: ICRL (arXiv 2603.08068), prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rc_lib.envs.base import Environment, Message

FORMS = ("message", "turns")
EXAMPLES_FOLLOW = "Here are solved examples:"
EXAMPLES_END = (
    "Now solve the following problem as the examples do, and not a problem from the examples."
)


@dataclass(frozen=True)
class Demonstration:
    """A solved question.

    Attributes:
        question: as a prompt asks it.
        messages: the solution, assistant and tool messages in turn, the assistant's first and last.

    Raises:
        ValueError: for messages of other roles or in another order.
    """

    question: str
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        roles = [message.role for message in self.messages]
        wanted = ["assistant", "tool"] * (len(roles) // 2) + ["assistant"]
        if roles != wanted:
            raise ValueError(
                f"the demonstration of {self.question!r} has roles {roles}; assistant and tool "
                "messages must alternate, the assistant's first and last"
            )


def prompt(
    instructions: str,
    question: str,
    demonstrations: Sequence[Demonstration] = (),
    form: str = "message",
) -> list[Message]:
    """Return the opening messages of a rollout.

    Source: ICRL, prompt: instructions; demonstrations split by ``===============Example N===...``;
    a line that asks for the actual problem. One user message, no system message.

    Deviation: the wording around the parts is ours. The form "turns" gives the instructions as a
    system message and each demonstration as chat turns, which small models follow where they
    ignore demonstrations inside a message.

    Args:
        instructions: what to do, "" for none.
        question: what is asked.
        demonstrations: shown before it, in order.
        form: "message" (the paper's) or "turns".

    Raises:
        ValueError: for an unknown form.

    >>> prompt("Use <search>.", "Why?")
    [Message(role='user', content='Use <search>.\\n\\nProblem: Why?')]
    >>> solved = Demonstration("Who?", (Message("assistant", "<answer> I </answer>"),))
    >>> [message.role for message in prompt("", "Why?", [solved], "turns")]
    ['user', 'assistant', 'user']
    """
    if form not in FORMS:
        raise ValueError(f"unknown prompt form {form!r}; use one of {FORMS}")
    if form == "turns":
        shown = [[Message("user", one.question), *one.messages] for one in demonstrations]
        opening = [Message("system", instructions)] if instructions else []
        return [*opening, *sum(shown, []), Message("user", question)]
    parts = [instructions] if instructions else []
    if demonstrations:
        parts += [
            EXAMPLES_FOLLOW,
            *map(_example, range(1, len(demonstrations) + 1), demonstrations),
        ]
        parts += [EXAMPLES_END, f"Actual Problem: {question}"]
    else:
        parts.append(f"Problem: {question}")
    return [Message("user", "\n\n".join(parts))]


def _example(number: int, one: Demonstration) -> str:
    solution = "\n".join(message.content for message in one.messages)
    rule = "=" * 15
    return (
        f"{rule}Example {number}{rule}\n"
        f"Example Problem: {one.question}\n\nExample Solution: {solution}"
    )


def demonstrate(env: Environment, actions: Sequence[str]) -> Demonstration:
    """Return the demonstration that an environment and these assistant messages make.

    Args:
        env: its `task` has the question as ``asked``.
        actions: assistant messages, which end the episode with full reward.

    Raises:
        ValueError: if they do not.
    """
    env.reset()
    messages: list[Message] = []
    for number, action in enumerate(actions, 1):
        observation, reward, terminated, *_ = env.step(action)
        messages += [Message("assistant", action), *observation]
        if terminated and number == len(actions) and reward == 1.0:
            return Demonstration(env.task.asked, tuple(messages))
        if terminated:
            break
    raise ValueError(
        f"the messages do not solve task {env.task.id} (parts {env.reward()}); a demonstration "
        "must end with its last message and reward 1"
    )
