"""The code environment: a maths problem, a Python interpreter behind tags, and ICRL's reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rc_lib.envs.python_sandbox import PythonSandbox, Result
from rc_lib.envs.tags import CODE, Tags
from rc_lib.envs.tool import ToolEnv
from rc_lib.rewards import EM_WEIGHT, FORMAT_WEIGHT, extract_answer, format_score
from rc_lib.tasks.maths import MathsTask, same_answer

NO_OUTPUT = "The code printed nothing; print what you want to see."


def instructions(tags: Tags = CODE) -> str:
    """Return what the policy is told to do.

    Source: ICRL (arXiv 2603.08068), the search prompt with code in the place of searches.

    Deviation: the wording is ours; the paper's prompt for its code tool is not published.

    >>> "<code> print(2 ** 10) </code>" in instructions()
    True
    """
    return (
        f"Solve the problem step by step. Each time you get new information, reason inside "
        f"<{tags.think}> and </{tags.think}>. If you want to compute something, write a Python "
        f"program that prints it, such as {tags.wrap('tool', 'print(2 ** 10)')}; what it prints "
        f"comes back between <{tags.result}> and </{tags.result}>. Each program starts anew, with "
        f"the standard library for maths and without files. You can run as many as you want. At "
        f"the end, give the answer alone inside <{tags.answer}> and </{tags.answer}>, for example "
        f"{tags.wrap('answer', '42')}."
    )


def program_of(content: str) -> str:
    """Return the program in a call: without the fence that chat models put around code.

    >>> program_of("```python\\nprint(1)\\n```")
    'print(1)'
    """
    lines = content.split("\n")
    fenced = len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1]) if fenced else content


def result_text(result: Result) -> str:
    """Return what the policy reads of a program's run: how it failed, then what it printed.

    The failure stands first, so that shortening does not take it away.

    >>> result_text(Result("1\\n", "NameError: name 'x' is not defined"))
    "NameError: name 'x' is not defined\\n1"
    """
    lines = [text for text in (result.error, result.output.strip()) if text]
    return "\n".join(lines) or NO_OUTPUT


class PythonToolEnv(ToolEnv):
    """One episode of a maths problem: messages that run code, and one that answers.

    Source: ICRL (arXiv 2603.08068), AIME with a code tool; everything that the paper says about
    searches holds for programs (see `rc_lib.envs.tool.ToolEnv`).

    Deviation: the paper does not say how it compares answers in maths. Exact match drops
    punctuation, for which -5 equals 5, and 0.5 equals 05; here numbers are equal by value
    (`rc_lib.tasks.maths.same_answer`). The weights of the reward are those of the search tasks.

    Args:
        task: the problem; never changed.
        sandbox: runs the programs; environments may share one.
        count_tokens: number of tokens of a text.
        tags: names of the tags.
        told: instructions, ``instructions(tags)`` by default, "" for none.
        options: the other arguments of `ToolEnv`.

    >>> task = MathsTask("m", "1-step", "What is 123 * 45?", ("5535",))
    >>> with PythonSandbox() as sandbox:
    ...     env = PythonToolEnv(task, sandbox, count_tokens=len)
    ...     messages, info = env.reset()
    ...     env.step("<think> I compute. </think> <code> print(123 * 45) </code>")[0][0].content
    '<result>5535</result>'
    >>> env.step("<answer> 5,535 </answer>")[1:4]
    (1.0, True, False)
    """

    calls, aim, content = "programs", "run code", "code"

    def __init__(
        self,
        task: MathsTask,
        sandbox: PythonSandbox,
        *,
        count_tokens: Callable[[str], int],
        tags: Tags = CODE,
        told: str | None = None,
        **options: Any,
    ) -> None:
        told = instructions(tags) if told is None else told
        super().__init__(task, count_tokens=count_tokens, tags=tags, told=told, **options)
        self.sandbox = sandbox

    def use_tool(self, content: str) -> tuple[str, dict[str, Any]]:
        """Run the program; info gets its ``result``."""
        result = self.sandbox.run(program_of(content))
        return result_text(result), {"result": result}

    def score(self, texts: Sequence[str]) -> dict[str, float]:
        """Return ``reward``, ``em``, ``exact`` (the same) and ``format`` of the messages."""
        prediction = extract_answer(texts, self.tags)
        em = float(any(same_answer(prediction, answer) for answer in self.task.answers))
        form = format_score(texts, self.tags)
        reward = round(EM_WEIGHT * em + FORMAT_WEIGHT * form, 9)
        return {"reward": reward, "em": em, "exact": em, "format": form}
