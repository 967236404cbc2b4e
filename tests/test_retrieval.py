"""BM25 against a plain second version, its index on disk, and search servers good and bad."""

import json
import math
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

from rc_lib.retrieval import (
    BM25Retriever,
    HTTPRetriever,
    Passage,
    RetrievalError,
    content_hash,
    unique,
)

WORDS = "red green blue tree river stone running rivers a the city".split()


def make_corpus(size=60):
    draw = np.random.default_rng(0)
    texts = (" ".join(draw.choice(WORDS, draw.integers(1, 12))) for _ in range(size))
    return [Passage(f"p{i}", text) for i, text in enumerate(texts)]


def naive_ranking(passages, query, k1=0.9, b=0.4):
    """BM25 as Lucene has it, passage by passage."""
    stem = Stemmer.Stemmer("english").stemWord
    cut = lambda text: [  # noqa: E731
        stem(w) for w in text.lower().split() if len(w) > 1 and w not in STOPWORDS_EN
    ]
    documents = [Counter(cut(f"{p.title} {p.text}")) for p in passages]
    lengths = [sum(d.values()) for d in documents]
    mean = sum(lengths) / len(lengths)
    scores = []
    for document, length in zip(documents, lengths, strict=True):
        score = 0.0
        for word in cut(query):
            holding = sum(word in d for d in documents)
            if word in document:
                idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
                tf = document[word]
                score += idf * tf / (tf + k1 * (1 - b + b * length / mean))
        scores.append(score)
    order = sorted(range(len(scores)), key=lambda i: -round(scores[i], 5))
    return [passages[i] for i in order if scores[i] > 0]


@pytest.mark.parametrize("query", ["red tree", "The RIVER, runs", "stone stone blue", "p7 city"])
@pytest.mark.parametrize("k", [1, 3, 60, 500])
def test_bm25_ranks_as_a_loop_over_the_passages(query, k):
    passages = make_corpus()
    wanted = naive_ranking(passages, query.replace(",", ""))
    assert BM25Retriever(passages).search(query, k) == wanted[:k]


def test_nothing_is_found_where_no_word_is_shared():
    retriever = BM25Retriever(make_corpus())
    for query in ("", "zebra", "the a of", "?!", "\u96ea"):
        assert retriever.search(query, 3) == []
    with pytest.raises(ValueError, match="k is 0"):
        retriever.search("red", 0)


def test_equal_scores_keep_the_order_of_the_corpus():
    passages = [Passage(f"x{i}", "red tree") for i in range(50)]
    assert BM25Retriever(passages).search("tree", 3) == passages[:3]


def test_the_index_on_disk_is_reused_by_content_and_gives_the_same_results(tmp_path, monkeypatch):
    passages = make_corpus()
    first = BM25Retriever(passages, tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == [first.path.name]
    monkeypatch.setattr(BM25Retriever, "_build", lambda self: pytest.fail("built again"))
    again = BM25Retriever(passages, tmp_path)
    assert isinstance(again._index.scores["data"], np.memmap)
    monkeypatch.undo()
    memory = BM25Retriever(passages)
    for query in ("red tree", "river stone city", "p3"):
        assert first.search(query, 5) == again.search(query, 5) == memory.search(query, 5)
    changed = BM25Retriever([*passages[:-1], Passage("p59", "another")], tmp_path)
    assert changed.path != first.path
    assert changed.search("another", 1) == [Passage("p59", "another")]


def test_a_hash_tells_title_from_text_and_order():
    one = content_hash([Passage("a", "b"), Passage("c", "d")])
    assert one != content_hash([Passage("ab", ""), Passage("c", "d")])
    assert one != content_hash([Passage("c", "d"), Passage("a", "b")])


def test_two_processes_that_write_at_once_do_no_harm(tmp_path, monkeypatch):
    passages, build = make_corpus(), BM25Retriever._build

    def slow(self):
        monkeypatch.setattr(BM25Retriever, "_build", build)
        BM25Retriever(passages, tmp_path)  # another one finishes first
        return build(self)

    monkeypatch.setattr(BM25Retriever, "_build", slow)
    assert BM25Retriever(passages, tmp_path).search("red", 1)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_killed_write_leaves_no_half_index(tmp_path, monkeypatch):
    monkeypatch.setattr(BM25Retriever, "_build", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        BM25Retriever(make_corpus(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_index_is_named(tmp_path):
    path = BM25Retriever(make_corpus(), tmp_path).path
    (path / "data.csc.index.npy").write_bytes(b"")
    with pytest.raises(RetrievalError, match=f"{path.name} cannot be read .* delete that folder"):
        BM25Retriever(make_corpus(), tmp_path)


def test_faulty_corpora_are_refused():
    with pytest.raises(ValueError, match="at least one passage"):
        BM25Retriever([])
    with pytest.raises(ValueError, match="no passage of the corpus has a word"):
        BM25Retriever([Passage("a", "the")])
    twice = [Passage("red", "tree")] * 2
    with pytest.raises(ValueError, match="come twice"):
        BM25Retriever(twice)
    assert BM25Retriever(unique(twice)).passages == twice[:1]


class Handler(BaseHTTPRequestHandler):
    """Answers with the server's next (status, body, delay)."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(json.loads(body))
        status, text, delay = self.server.script[min(len(self.server.asked), self.server.last) - 1]
        time.sleep(delay)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        try:
            self.wfile.write(text.encode())
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client gave up

    def log_message(self, *args):
        pass


@pytest.fixture
def serve():
    """Return a function that starts a server with a script and returns (server, retriever)."""
    started = []

    def start(*script, **options):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.asked, server.script, server.last = [], script, len(script)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/retrieve"
        retriever = HTTPRetriever(url, **{"backoff_s": 0.001} | options)
        started.append((server, thread, retriever))
        return server, retriever

    yield start
    for server, thread, retriever in started:
        retriever._pool.clear()
        server.shutdown()
        thread.join()
        server.server_close()


def found(*contents):
    return json.dumps({"result": [[{"document": {"contents": c}, "score": 1} for c in contents]]})


def test_a_server_is_asked_in_search_r1s_protocol(serve):
    server, retriever = serve((200, found('"Lima"\nCapital.\nOf Peru.', "Oslo", "x\ny", "z"), 0))
    assert retriever.search("Peru?", 3) == [
        Passage("Lima", "Capital.\nOf Peru."), Passage("Oslo", ""), Passage("x", "y"),
    ]  # fmt: skip
    assert server.asked == [{"queries": ["Peru?"], "topk": 3, "return_scores": True}]


def test_nothing_found_is_no_failure(serve):
    assert serve((200, found(), 0))[1].search("q", 3) == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(serve, status):
    server, retriever = serve((status, "busy", 0), (status, "busy", 0), (200, found("a\nb"), 0))
    assert retriever.search("q", 1) == [Passage("a", "b")]
    assert len(server.asked) == 3


def test_a_server_that_stays_busy_stops_the_run(serve):
    server, retriever = serve((503, "no workers", 0), retries=2)
    with pytest.raises(RetrievalError, match="answered status 503: b'no workers'"):
        retriever.search("q", 1)
    assert len(server.asked) == 3


def test_a_refused_request_is_not_repeated(serve):
    server, retriever = serve((404, "no such path", 0))
    with pytest.raises(RetrievalError, match="answered status 404"):
        retriever.search("q", 1)
    assert len(server.asked) == 1


def test_a_slow_server_is_given_up_on(serve):
    server, retriever = serve((200, found("a\nb"), 0.5), timeout_s=0.05, retries=1)
    with pytest.raises(RetrievalError, match="no answer in 2 attempts"):
        retriever.search("q", 1)
    assert len(server.asked) == 2


def test_a_slow_answer_may_be_followed_by_a_fast_one(serve):
    _, retriever = serve((200, "", 0.5), (200, found("a\nb"), 0), timeout_s=0.2)
    assert retriever.search("q", 1) == [Passage("a", "b")]


def test_an_absent_server_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    retriever = HTTPRetriever(f"http://127.0.0.1:{port}/retrieve", retries=1, backoff_s=0.001)
    with pytest.raises(RetrievalError, match=f"127.0.0.1:{port}/retrieve gave no answer"):
        retriever.search("q", 1)


@pytest.mark.parametrize(
    "body",
    ["", "<html>", "[]", "{}", '{"result": []}', '{"result": [[1]]}', '{"result": 3}',
     '{"result": [{"a": 1}]}', '{"result": [[{"document": {}}]]}',
     '{"result": [[{"document": {"contents": null}}]]}'],
)  # fmt: skip
def test_an_answer_of_another_form_is_shown(serve, body):
    with pytest.raises(RetrievalError, match="not .*contents"):
        serve((200, body, 0))[1].search("q", 1)
