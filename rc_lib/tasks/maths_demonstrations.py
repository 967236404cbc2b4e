"""Three solved problems for prompts about real maths sets: one, three and one programs."""

from functools import cache

from rc_lib.demonstrations import Demonstration, demonstrate
from rc_lib.envs.python_sandbox import PythonSandbox
from rc_lib.envs.python_tool import PythonToolEnv
from rc_lib.envs.tags import CODE
from rc_lib.tasks.maths import MathsTask

# Written by hand: problem, answer, and for each message the thought and the program; the last
# message answers.
SOLVED = (
    (
        "Find the sum of all positive integers below 1000 that leave remainder 3 when divided by "
        "7 and remainder 4 when divided by 9.",
        "8056",
        (
            "I list these integers and add them.",
            "print(sum(n for n in range(1, 1000) if n % 7 == 3 and n % 9 == 4))",
        ),
        ("The sum is 8056.", None),
    ),
    (
        "Three different numbers are drawn from 1 to 12. The probability that their sum is prime "
        "is m/n in lowest terms. Find m + n.",
        "141",
        (
            "First I count the draws.",
            "from itertools import combinations\nprint(len(list(combinations(range(1, 13), 3))))",
        ),
        (
            "There are 220 draws. Now I count those with a prime sum.",
            "from itertools import combinations\n"
            "prime = lambda n: n > 1 and all(n % d for d in range(2, n))\n"
            "print(sum(prime(sum(draw)) for draw in combinations(range(1, 13), 3)))",
        ),
        (
            "There are 62 of them. Now I put 62/220 in lowest terms.",
            "from fractions import Fraction\nprint(Fraction(62, 220))",
        ),
        ("It is 31/110, and 31 + 110 = 141.", None),
    ),
    (
        "Find the remainder when 2 to the power of 2000 is divided by 1009.",
        "453",
        ("Python raises to a power modulo a number.", "print(pow(2, 2000, 1009))"),
        ("The remainder is 453.", None),
    ),
)


@cache
def maths_demonstrations() -> tuple[Demonstration, ...]:
    """Return the demonstrations; a k-shot prompt of ICRL shows the first k.

    Source: ICRL (arXiv 2603.08068): a one-call, a three-call and a one-call solution.

    Deviation: problems and programs are ours; the paper's for its code tool are not published.
    What a program prints there is what the sandbox returned.

    >>> [len(one.messages) // 2 for one in maths_demonstrations()]
    [1, 3, 1]
    """
    shown = []
    with PythonSandbox() as sandbox:
        for problem, answer, *steps in SOLVED:
            env = PythonToolEnv(
                MathsTask(problem, "demonstration", problem, (answer,)), sandbox, count_tokens=len
            )
            actions = [
                f"{CODE.wrap('think', thought)} "
                + (CODE.wrap("tool", program) if program else CODE.wrap("answer", answer))
                for thought, program in steps
            ]
            shown.append(demonstrate(env, actions))
    return tuple(shown)
