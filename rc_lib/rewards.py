"""The reward of ICRL's search tasks: exact match and format, in parts; no model, no environment.

Source: ICRL (arXiv 2603.08068): ``r = 0.8 * EM + 0.2 * format`` with
``format = clip(1 - sum of penalties, 0, 1)``.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from rc_lib.envs.tags import SEARCH, Tags

EM_WEIGHT, FORMAT_WEIGHT = 0.8, 0.2
PENALTIES = {
    "no_answer": 0.5,  # no opening or no closing answer tag
    "unbalanced_answer": 0.2,
    "no_think": 0.15,  # no opening or no closing think tag
    "unbalanced_think": 0.1,
    "no_tool": 0.1,  # neither an opening nor a closing tool tag
    "empty_answer": 0.2,
}
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return an answer in lower case, without punctuation, articles and extra spaces.

    Source: ICRL's official code, as in SQuAD's evaluation.

    >>> normalize_answer("The  U.S. of A.")
    'us of'
    """
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Return whether a prediction equals any of the gold answers (aliases) once normalised.

    Raises:
        ValueError: if there is no gold answer.

    >>> exact_match("the beatles", ["The Beatles!", "Fab Four"])
    True
    """
    if not answers:
        raise ValueError("no gold answer to compare with; give at least one")
    return normalize_answer(prediction) in {normalize_answer(answer) for answer in answers}


def contains_all(prediction: str, answers: Sequence[str]) -> bool:
    """Return whether there are several gold answers and the prediction contains every one.

    Source: ICRL's official code, training reward: for questions whose answer is a list.

    >>> contains_all("Bronx, Queens and Brooklyn", ["Queens", "the Bronx"])
    True
    >>> contains_all("Bronx and Queens", ["Queens"])
    False
    """
    normalized = normalize_answer(prediction)
    return len(answers) > 1 and all(normalize_answer(a) in normalized for a in answers)


def extract_answer(texts: Sequence[str], tags: Tags = SEARCH) -> str:
    """Return the content of the last complete answer in the texts, "" where there is none.

    Deviation: without an answer tag the official code grades the last line. With its prompt in the
    text that never happens, so here the answer is empty.

    >>> extract_answer(["<answer> a </answer>", "<Answer>b</Answer> <answer> c"])
    'b'
    """
    pattern = rf"<{re.escape(tags.answer)}>(.*?)</{re.escape(tags.answer)}>"
    found = [x for t in texts for x in re.findall(pattern, t, re.DOTALL | re.IGNORECASE)]
    return found[-1].strip() if found else ""


def violations(texts: Sequence[str], tags: Tags = SEARCH) -> list[str]:
    """Return the keys of `PENALTIES` that the texts incur; tags count in any case.

    >>> violations(["<think> hm </think> <answer> </answer>"])
    ['no_tool', 'empty_answer']
    """

    def counts(name: str) -> tuple[int, int]:
        lowered, name = [text.lower() for text in texts], name.lower()
        return tuple(sum(t.count(f"<{slash}{name}>") for t in lowered) for slash in ("", "/"))

    answer, think, tool = counts(tags.answer), counts(tags.think), counts(tags.tool)
    incurred = {
        "no_answer": 0 in answer,
        "unbalanced_answer": answer[0] != answer[1],
        "no_think": 0 in think,
        "unbalanced_think": think[0] != think[1],
        "no_tool": not any(tool),
        "empty_answer": not extract_answer(texts, tags),
    }
    return [name for name, is_so in incurred.items() if is_so]


def format_score(texts: Sequence[str], tags: Tags = SEARCH) -> float:
    """Return the format score in [0, 1]; 0 where nothing was written.

    >>> format_score(["<think> hm </think> <answer> </answer>"]), format_score([""])
    (0.7, 0.0)
    """
    if not any(text.strip() for text in texts):
        return 0.0
    # Rounded, as sums of the same value in another order would make a spread in a group.
    score = 1.0 - sum(PENALTIES[name] for name in violations(texts, tags))
    return round(min(1.0, max(0.0, score)), 9)


def search_reward(
    texts: Sequence[str], answers: Sequence[str], tags: Tags = SEARCH
) -> dict[str, float]:
    """Return the parts of the reward of one rollout.

    Deviation: the official code decodes prompt and response together. The instructions' own tags
    then satisfy every presence check, an empty response scores 0.2, and where the policy gives no
    answer the last one of the prompt is graded. Which texts are scored is the caller's choice
    (`rc_lib.envs.search.SearchEnv`, ``reward_scope``); by default the policy's own alone.

    Args:
        texts: the messages to score, in order; a pair of tags does not reach over two of them.
        answers: gold answers, any of which is right.
        tags: names of the tags.

    Returns:
        ``reward`` in [0, 1]; ``em``, 1.0 for an exact match or, in training, several gold answers
        that are all contained; ``exact``, the exact match alone, which evaluation reports; and
        ``format`` in [0, 1].

    Raises:
        ValueError: if there is no gold answer.

    >>> texts = ["<think> - </think> <search> q </search>", "<answer>Lima</answer>"]
    >>> search_reward(texts, ["Lima"])
    {'reward': 1.0, 'em': 1.0, 'exact': 1.0, 'format': 1.0}
    """
    prediction = extract_answer(texts, tags)
    exact = exact_match(prediction, answers) and bool(prediction)
    em = exact or (bool(prediction) and contains_all(prediction, answers))
    form = format_score(texts, tags)
    reward = round(EM_WEIGHT * em + FORMAT_WEIGHT * form, 9)
    return {"reward": reward, "em": float(em), "exact": float(exact), "format": form}
