"""Search for passages: BM25 over a local corpus, or a search server over HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

import bm25s
import numpy as np
import Stemmer
import urllib3

K1, B = 0.9, 0.4  # Pyserini's, which Search-R1's BM25 baseline uses


class Passage(NamedTuple):
    """A titled text.

    >>> Passage("Lima", "Lima is the capital of Peru.").title
    'Lima'
    """

    title: str
    text: str


class Retriever(Protocol):
    """Finds passages for a query."""

    def search(self, query: str, k: int) -> list[Passage]:
        """Return at most k passages, the best first; none where nothing matches."""
        ...


class RetrievalError(RuntimeError):
    """A search that could not be made; its message says why and what to do."""


def unique(passages: Iterable[Passage]) -> list[Passage]:
    """Return the passages without those that come again, in order of first appearance.

    >>> unique([Passage("a", "b"), Passage("a", "b"), Passage("a", "c")])
    [Passage(title='a', text='b'), Passage(title='a', text='c')]
    """
    return list(dict.fromkeys(passages))


class BM25Retriever:
    """BM25 by bm25s over "title text", English stop words and Snowball stems.

    Equal scores are ordered by place in the corpus, so results do not depend on the machine.

    Source: ICRL (arXiv 2603.08068), retrieval of the top 3; k1 and b are Pyserini's.

    Deviation: ICRL's own runs ask a web search. A passage that shares no word with the query is
    not returned, where BM25 would fill up the top k with passages of score 0.

    Args:
        passages: the corpus, without repetitions.
        cache_dir: where the index lies, one folder for each content, memory-mapped; None keeps it
            in memory.

    Raises:
        ValueError: for an empty corpus, one without words, or a passage that comes twice.
        RetrievalError: if the index on disk cannot be read.

    >>> retriever = BM25Retriever([Passage("Lima", "Capital of Peru."), Passage("Oslo", "Cold.")])
    >>> retriever.search("Which capital has Peru?", 3)
    [Passage(title='Lima', text='Capital of Peru.')]
    """

    def __init__(self, passages: Sequence[Passage], cache_dir: str | Path | None = None):
        self.passages = [Passage(*passage) for passage in passages]
        if not self.passages:
            raise ValueError("a corpus needs at least one passage; got none")
        if len(set(self.passages)) < len(self.passages):
            raise ValueError("some passages come twice in the corpus; pass unique(passages)")
        self.path = None  # folder of the index on disk
        if cache_dir is None:
            self._index = self._build()
            return
        self.path = Path(cache_dir) / f"bm25-{content_hash(self.passages)[:16]}"
        if not self.path.exists():
            self._write()
        try:
            self._index = bm25s.BM25.load(self.path, mmap=True)
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise RetrievalError(
                f"the index in {self.path} cannot be read ({error}); delete that folder"
            ) from error

    def search(self, query: str, k: int) -> list[Passage]:
        """Return at most k passages of positive score, the best first.

        Raises:
            ValueError: if k is below 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least 1 passage")
        words = [word for word in _words([query])[0] if word in self._index.vocab_dict]
        if not words:
            return []
        scores = self._index.get_scores(words)
        k = min(k, len(scores))
        found = np.flatnonzero((scores > 0) & (scores >= np.partition(scores, -k)[-k]))
        order = found[np.argsort(-scores[found], kind="stable")][:k]
        return [self.passages[place] for place in order]

    def _build(self) -> bm25s.BM25:
        index = bm25s.BM25(k1=K1, b=B, backend="numpy")
        words = _words([f"{passage.title} {passage.text}" for passage in self.passages])
        if not any(words):
            raise ValueError(
                "no passage of the corpus has a word of two letters that is no stop word"
            )
        index.index(words, show_progress=False)
        return index

    def _write(self) -> None:
        """Write the index beside its place and move it there, so that it is whole or absent."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.mkdtemp(dir=self.path.parent, prefix=".bm25-")
        try:
            self._build().save(temporary, show_progress=False)
            os.rename(temporary, self.path)
        except OSError:
            if not self.path.exists():  # if it does, another process was faster
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def content_hash(passages: Sequence[Passage]) -> str:
    """Return the SHA-256 of a corpus and of all that its index depends on.

    >>> content_hash([Passage("a", "b")]) == content_hash([Passage("a", "c")])
    False
    """
    made_by = [bm25s.__version__, Stemmer.version(), K1, B]
    digest = hashlib.sha256(json.dumps(made_by).encode())
    for passage in passages:
        digest.update(json.dumps(passage).encode())
    return digest.hexdigest()


@cache
def _stemmer() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("english")


def _words(texts: list[str]) -> list[list[str]]:
    return bm25s.tokenize(
        texts, stopwords="en", stemmer=_stemmer(), return_ids=False, show_progress=False
    )


class HTTPRetriever:
    """A search server that speaks Search-R1's protocol.

    It gets ``POST url {"queries": [query], "topk": k, "return_scores": true}`` and answers
    ``{"result": [[{"document": {"contents": "title\\ntext"}}, ...]]}``.

    Source: the servers of Search-R1 (arXiv 2503.09516) and of ICRL's official code.

    Deviation: after three failures the official code goes on with an empty result, and trains on
    it; here the run stops with a `RetrievalError`. Results behind the first k are left out.

    Args:
        url: e.g. ``http://127.0.0.1:8000/retrieve``.
        timeout_s: seconds for each attempt, to connect and to answer.
        retries: further attempts after a failed connection, a time-out, or status 429 or 5xx.
        backoff_s: seconds before the second retry; doubled for each further one.

    Raises:
        ValueError: for an address that is not http or https.

    >>> HTTPRetriever("localhost:8000")
    Traceback (most recent call last):
        ...
    ValueError: search server 'localhost:8000' must begin with http:// or https://
    """

    def __init__(
        self, url: str, *, timeout_s: float = 30.0, retries: int = 3, backoff_s: float = 1.0
    ):
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"search server {url!r} must begin with http:// or https://")
        self.url, self.retries = url, retries
        policy = urllib3.Retry(
            total=retries,
            redirect=False,
            respect_retry_after_header=False,
            allowed_methods=["POST"],
            status_forcelist=[429, 500, 502, 503, 504],
            backoff_factor=backoff_s / 2,
            raise_on_status=False,
        )
        self._pool = urllib3.PoolManager(retries=policy, timeout=urllib3.Timeout(timeout_s))

    def search(self, query: str, k: int) -> list[Passage]:
        """Return at most k passages, the best first.

        Raises:
            RetrievalError: if the server cannot be reached, is too slow, answers with an error, or
                answers something that is not as above.
        """
        body = {"queries": [query], "topk": k, "return_scores": True}
        try:
            response = self._pool.request("POST", self.url, json=body)
        except urllib3.exceptions.HTTPError as error:
            raise RetrievalError(
                f"search server {self.url} gave no answer in {self.retries + 1} attempts "
                f"({error}); start it, or raise timeout_s or retries"
            ) from error
        if response.status != 200:
            raise RetrievalError(
                f"search server {self.url} answered status {response.status}: "
                f"{response.data[:200]!r}"
            )
        try:
            (documents,) = response.json()["result"]
            contents = [document["document"]["contents"] for document in documents[:k]]
            return [Passage(*_title_and_text(text)) for text in contents]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RetrievalError(
                f"search server {self.url} answered {response.data[:200]!r}, not "
                '{"result": [[{"document": {"contents": "title\\ntext"}}]]}'
            ) from error


def _title_and_text(contents: str) -> tuple[str, str]:
    title, _, text = contents.partition("\n")
    return title.strip().strip('"'), text.strip()
