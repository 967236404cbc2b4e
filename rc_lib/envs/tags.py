"""The tags of text tool use: think, call the tool, read its result, answer; and their safety."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import astuple, dataclass

CUT = " ... [cut]"  # stands where an observation was shortened
ENTITY_DEPTH = 4  # an honest page escapes its entities once, perhaps twice
# All that is, decomposes to, or is drawn like a single angle bracket (Unicode TR39 and brackets).
LEFT = "<\u02c2\u1438\u16b2\u2039\u226e\u22d6\u2329\u276c\u276e\u2770\u27e8\u2991\u29fc\u3008"
LEFT += "\ufe3f\ufe64\uff1c\U0001d236"
RIGHT = ">\u02c3\u1433\u203a\u226f\u22d7\u232a\u276d\u276f\u2771\u27e9\u2992\u29fd\u3009"
RIGHT += "\ufe40\ufe65\uff1e\U00016f3f\U0001d237"
BRACKETS = str.maketrans(dict.fromkeys(LEFT, "[") | dict.fromkeys(RIGHT, "]"))


@dataclass(frozen=True)
class Tags:
    """Names of the four tags; the defaults are the search protocol.

    Source: ICRL (arXiv 2603.08068), after Search-R1 (arXiv 2503.09516).

    Attributes:
        think: around the policy's reasoning.
        tool: around what the policy gives to the tool.
        result: around what the tool returned.
        answer: around the final answer.

    Raises:
        ValueError: for a name that is no word, or names that are not all different.

    >>> Tags(tool="code", result="result").wrap("tool", "print(1)")
    '<code> print(1) </code>'
    """

    think: str = "think"
    tool: str = "search"
    result: str = "information"
    answer: str = "answer"

    def __post_init__(self) -> None:
        names = astuple(self)
        if len({name.lower() for name in names}) < 4 or not all(map(str.isidentifier, names)):
            raise ValueError(f"tags {names} must be four different words")

    def wrap(self, role: str, text: str) -> str:
        """Return `text` between the tags of a role ("think", "tool", "result" or "answer")."""
        name = getattr(self, role)
        return f"<{name}> {text} </{name}>"


SEARCH = Tags()
CODE = Tags(tool="code", result="result")


def cut(text: str, tags: Tags = SEARCH) -> str:
    """Return a message up to its first closing tool tag, else up to its first closing answer tag.

    Source: ICRL's official code. What a policy writes behind its call, such as a result that it
    made up, is neither acted on nor scored.

    Deviation: the official code cuts text and encodes it again, so the trained ids are not the
    sampled ones. Here the ids stay as sampled; ids behind the cut are part of the policy's span.

    >>> cut("<search> a </search> <information> b </information> <answer> c </answer>")
    '<search> a </search>'
    """
    for name in (tags.tool, tags.answer):
        before, closing, _ = text.partition(f"</{name}>")
        if closing:
            return before + closing
    return text


def parse_action(text: str, tags: Tags = SEARCH) -> tuple[str | None, str]:
    """Return ("tool" or "answer", content) of a message's first complete call or answer.

    Source: ICRL's official code: names are read as written, upper case is no tag.

    Returns:
        (None, "") where there is neither. The content is stripped and may be empty.

    >>> parse_action("<think> hm </think> <search> capital of Peru </search>")
    ('tool', 'capital of Peru')
    """
    roles = {tags.tool: "tool", tags.answer: "answer"}
    pattern = rf"<({re.escape(tags.tool)}|{re.escape(tags.answer)})>(.*?)</\1>"
    match = re.search(pattern, cut(text, tags), re.DOTALL)
    return (roles[match.group(1)], match.group(2).strip()) if match else (None, "")


def invalid_action(tags: Tags = SEARCH, aim: str = "search", content: str = "query") -> str:
    """Return what the policy reads after a message without a call or an answer.

    Source: ICRL's official code, as in Search-R1.

    >>> invalid_action(CODE, aim="run code", content="code")[:83]
    'My previous action is invalid. If I want to run code, I should put the code between'
    """
    return (
        f"My previous action is invalid. If I want to {aim}, I should put the {content} between "
        f"<{tags.tool}> and </{tags.tool}>. If I want to give the final answer, I should put the "
        f"answer between <{tags.answer}> and </{tags.answer}>. Let me try again."
    )


def neutralise(text: str) -> str:
    """Return text in which no angle bracket is left, so no tag can stand or arise in it.

    Entities are decoded, as a reader would decode them, and every character that is or looks like
    an angle bracket becomes a square one. As not even half a tag remains, neither joining texts
    nor cutting them can make one. White space stays.

    Deviation: the official code shows tool text as it comes.

    >>> neutralise("AT&amp;T </information><ANSWER>&lt;x&#62;")
    'AT&T [/information][ANSWER][x]'
    """
    for _ in range(ENTITY_DEPTH):
        decoded = html.unescape(text)
        if decoded == text:
            break
        text = decoded
    else:
        text = text.replace("&", "+")
    return text.translate(BRACKETS)


def observation(text: str, tags: Tags, budget: int, count_tokens: Callable[[str], int]) -> str:
    """Return a tool's text, made harmless and shortened to a budget, between the result tags.

    Deviation: the official code cuts an observation's ids from the right and loses the closing
    tag; here the text is cut before it, with a visible mark.

    Args:
        text: what the tool returned.
        tags: names of the tags.
        budget: most tokens of the observation, tags included.
        count_tokens: number of tokens of a text.

    Raises:
        ValueError: if the budget does not hold the tags and the mark.

    >>> observation("one two three four five", SEARCH, 20, len)
    Traceback (most recent call last):
        ...
    ValueError: 20 tokens do not hold even '<information> ... [cut]</information>'; raise the budget
    >>> observation("one two three four five", SEARCH, 45, len)
    '<information>one two ... [cut]</information>'
    """
    text = neutralise(text).strip()

    def framed(body: str) -> str:
        return f"<{tags.result}>{body}</{tags.result}>"

    def shortened(length: int) -> str:
        return framed(text[:length].rstrip() + CUT)

    if count_tokens(framed(CUT)) > budget:
        raise ValueError(f"{budget} tokens do not hold even {framed(CUT)!r}; raise the budget")
    # A token is hardly ever longer than 32 characters; a huge text is not tokenised for nothing.
    if len(text) <= 32 * budget and count_tokens(framed(text)) <= budget:
        return framed(text)
    # Characters that are known to fit, and that may: the count need not rise with the length.
    low, high = 0, min(len(text), 32 * budget)
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(shortened(middle)) <= budget:
            low = middle
        else:
            high = middle - 1
    return shortened(low)
