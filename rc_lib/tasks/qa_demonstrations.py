"""Three solved questions for prompts about the real question sets: one, three and one searches."""

from functools import cache

from rc_lib.demonstrations import Demonstration, demonstrate
from rc_lib.envs.search import SearchEnv
from rc_lib.envs.tags import SEARCH
from rc_lib.retrieval import BM25Retriever, Passage
from rc_lib.tasks.qa import QATask

# Written by hand.
PASSAGES = (
    Passage(
        "Frankenstein",
        "Frankenstein; or, The Modern Prometheus is an 1818 Gothic novel by Mary Shelley.",
    ),
    Passage(
        "Mary Shelley",
        "Mary Shelley was an English writer, born in London in 1797. Her mother died days later.",
    ),
    Passage(
        "The Magic Flute",
        "The Magic Flute is an opera of 1791; its composer is Wolfgang Amadeus Mozart.",
    ),
    Passage(
        "Wolfgang Amadeus Mozart",
        "Mozart was born in Salzburg on 27 January 1756 and died in Vienna on 5 December 1791.",
    ),
    Passage(
        "Leopold Mozart",
        "Leopold Mozart, born in Augsburg, was the father of Wolfgang Amadeus Mozart.",
    ),
    Passage("Salzburg", "Salzburg is a city in Austria, on both banks of the river Salzach."),
    Passage("Gold", "Gold is a chemical element; its symbol is Au and its atomic number is 79."),
)
# Question, answer, and for each message the thought and the query; the last one answers.
SOLVED = (
    (
        "Who wrote the novel Frankenstein?",
        "Mary Shelley",
        ("I need the author of the novel Frankenstein.", "author of the novel Frankenstein"),
        ("The novel Frankenstein is by Mary Shelley.", None),
    ),
    (
        "On which river lies the birthplace of the composer of The Magic Flute?",
        "Salzach",
        ("First I need the composer of The Magic Flute.", "composer of The Magic Flute"),
        ("It is Mozart. Now I need the place where he was born.", "Mozart was born in"),
        ("He was born in Salzburg. Now I need its river.", "river of Salzburg"),
        ("Salzburg lies on the Salzach.", None),
    ),
    (
        "What is the chemical symbol of gold?",
        "Au",
        ("I need the chemical symbol of gold.", "chemical symbol of gold"),
        ("The symbol of gold is Au.", None),
    ),
)


@cache
def qa_demonstrations() -> tuple[Demonstration, ...]:
    """Return the demonstrations; a k-shot prompt of ICRL shows the first k.

    Source: ICRL (arXiv 2603.08068): a one-search, a three-search multi-hop, a one-search question.

    Deviation: questions and passages are ours. What a search returns there is what the search
    environment returns over these passages.

    >>> [len(one.messages) // 2 for one in qa_demonstrations()]
    [1, 3, 1]
    """
    retriever = BM25Retriever(PASSAGES)
    shown = []
    for question, answer, *steps in SOLVED:
        env = SearchEnv(
            QATask(question, "demonstration", question, (answer,)), retriever,
            count_tokens=len, observation_tokens=10_000,
        )  # fmt: skip
        actions = [
            f"{SEARCH.wrap('think', thought)} "
            + (SEARCH.wrap("tool", query) if query else SEARCH.wrap("answer", answer))
            for thought, query in steps
        ]
        shown.append(demonstrate(env, actions))
    return tuple(shown)
