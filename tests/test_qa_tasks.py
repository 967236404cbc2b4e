"""Question sets from JSON lines and from a (pretended) hub; real sets where they are at hand.

The real sets are looked for in the folder that the environment variable RC_QA_DATA names, or in
../shared/data/qa. They have the layout of `rc_lib.tasks.qa.read_tasks`.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rc_lib.envs.search import SearchEnv
from rc_lib.paths import ROOT
from rc_lib.retrieval import BM25Retriever, Passage
from rc_lib.rewards import exact_match
from rc_lib.tasks.qa import HUB, SETS, QATask, load_hub, read_passages, read_tasks, subset

DATA = Path(os.environ.get("RC_QA_DATA", ROOT.parent / "shared" / "data" / "qa"))
CORPUS = (
    "hotpotqa_dev300", "hotpotqa_train100", "musique_dev200", "musique_train100",
    "2wikimultihopqa_dev164", "2wikimultihopqa_train300", "2wikimultihopqa_corpus6119",
)  # fmt: skip
needs_data = pytest.mark.skipif(
    not all((DATA / f"{name}.jsonl").exists() for name in CORPUS),
    reason=f"no question sets in {DATA}; set RC_QA_DATA to a folder that has them",
)
PARAGRAPHS = [
    {"title": "Lima", "text": "Capital of Peru.", "is_supporting": True},
    {"title": "Oslo", "text": "Cold.", "is_supporting": False},
]
ROW = {"id": "a", "question": "capital of peru", "answers": ["Lima"], "dataset": "nq"}


def write(path, *rows):
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return path


def test_a_file_becomes_tasks_and_passages(tmp_path):
    bare = {"question": "who", "answers": ["x", "y"], "dataset": "trivia", "title": None}
    path = write(tmp_path / "set.jsonl", ROW | {"paragraphs": PARAGRAPHS}, "", bare)
    first, second = read_tasks(path)
    assert first == QATask(
        "a", "nq", "capital of peru", ("Lima",), (Passage("Lima", "Capital of Peru."),)
    )
    assert second == QATask("trivia_3", "trivia", "who", ("x", "y"))
    single = [{"title": "Oslo", "text": "Cold."}, {"title": "C", "text": "d"}]
    corpus = write(tmp_path / "corpus.jsonl", *single)
    path.write_text(path.read_text().splitlines()[0])
    assert read_passages([path, corpus]) == [
        Passage("Lima", "Capital of Peru."), Passage("Oslo", "Cold."), Passage("C", "d"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "set.jsonl:2 is not JSON"),
        ("[]", "set.jsonl:2"),
        ({"id": "b", "answers": ["x"], "dataset": "nq"}, "set.jsonl:2 lacks 'question'"),
        ({"id": "b", "question": "?", "answers": ["x"]}, "set.jsonl:2 lacks 'dataset'"),
        (ROW | {"id": "b", "answers": []}, "task b has answers"),
        (ROW | {"id": "b", "answers": [""]}, "task b has answers"),
        (ROW | {"id": "b", "answers": "Lima"}, "answers are 'Lima'; give a list"),
        (ROW | {"id": "b", "question": " "}, "task b has no question"),
        (ROW | {"id": "b", "answerable": False}, "unanswerable"),
        (ROW | {"id": "b", "paragraphs": [{"title": "x"}]}, "set.jsonl:2 lacks 'is_supporting'"),
        (ROW, "the id 'a' comes twice"),
    ],
)
def test_a_faulty_line_is_named_and_not_dropped(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        read_tasks(write(tmp_path / "set.jsonl", ROW, row))


def test_files_without_what_is_asked_for_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no question"):
        read_tasks(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(ValueError, match="set.jsonl:1 has neither paragraphs nor"):
        read_passages([write(tmp_path / "set.jsonl", ROW)])
    with pytest.raises(FileNotFoundError):
        read_tasks(tmp_path / "absent.jsonl")


def test_questions_are_asked_with_one_question_mark():
    for question in ("who", "who?", " who? "):
        assert QATask("i", "nq", question, ("x",)).asked == "who?"


def test_a_subset_depends_on_the_seed_and_keeps_the_order():
    tasks = [QATask(str(i), "nq", "?", ("a",)) for i in range(40)]
    chosen = subset(tasks, 10, 1)
    assert chosen == subset(tasks, 10, 1) != subset(tasks, 10, 2)
    places = [tasks.index(task) for task in chosen]
    assert places == sorted(places) != list(range(10))
    with pytest.raises(ValueError, match="size 0"):
        subset(tasks, 0, 1)


@pytest.mark.parametrize("name", SETS)
def test_each_set_is_read_from_the_hub(monkeypatch, name):
    asked = []

    def load_dataset(*args, **options):
        asked.append((*args, options["split"]))
        return [{"id": "7", "question": "who", "golden_answers": ["x", "y"]}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert load_hub(name) == [QATask(f"{name}_7", name, "who", ("x", "y"))]
    load_hub(name, "train")
    assert asked == [(HUB, *SETS[name]), (HUB, SETS[name][0], "train")]


def test_a_hub_out_of_reach_and_an_absent_package_are_told_apart(monkeypatch):
    def load_dataset(*args, **options):
        raise ConnectionError("offline mode is enabled")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(RuntimeError, match=r"nq \(test\) could not be loaded \(offline mode"):
        load_hub("nq")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RuntimeError, match="read by the package datasets: pip install"):
        load_hub("nq")


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    passages = read_passages(DATA / f"{name}.jsonl" for name in CORPUS)
    assert len(passages) == 17_531
    return BM25Retriever(passages, tmp_path_factory.mktemp("index"))


# Mean share of the supporting paragraphs found, and share of questions with all, at 3 and at 10.
RECALL = {
    "hotpotqa_dev300": (0.625, 0.343, 0.837, 0.690),
    "musique_dev200": (0.408, 0.070, 0.546, 0.185),
    "2wikimultihopqa_dev164": (0.642, 0.305, 0.741, 0.463),
}


@needs_data
@pytest.mark.parametrize("name", RECALL)
def test_recall_of_the_real_sets_is_as_measured_elsewhere(retriever, name):
    measured = []
    tasks = read_tasks(DATA / f"{name}.jsonl")
    ranked = [retriever.search(task.question, 10) for task in tasks]
    for k in (3, 10):
        recall = np.array(
            [
                np.mean([passage in found[:k] for passage in task.supporting])
                for task, found in zip(tasks, ranked, strict=True)
            ]
        )
        measured += [recall.mean(), (recall == 1).mean()]
    np.testing.assert_allclose(measured, RECALL[name], atol=0.005)


@needs_data
def test_scripted_searches_replay_on_real_questions(retriever):
    tasks = [task for name in RECALL for task in read_tasks(DATA / f"{name}.jsonl")[::10]]
    found = 0
    for task in tasks:
        env = SearchEnv(task, retriever, count_tokens=lambda text: len(text.split()))
        env.reset()
        for passage in task.supporting:
            query = f"{passage.title} {' '.join(passage.text.split()[:8])}"
            (message,), _, over, cut, info = env.step(
                f"<think> next </think> <search> {query.replace('<', ' ')} </search>"
            )
            assert not over and not cut
            assert message.content.startswith("<information>Doc 1(Title: ")
            assert message.content.endswith("</information>")
            assert message.content.count("<") == 2
            assert len(message.content.split()) <= 500
            found += passage in info["passages"]
        last = env.step(f"<think> so </think> <answer> {task.answers[-1]} </answer>")
        assert last[1:4] == (1.0, True, False)
    assert found / sum(len(task.supporting) for task in tasks) > 0.95


@needs_data
def test_all_real_files_are_read():
    paths = [path for path in DATA.glob("*.jsonl") if "corpus" not in path.stem]
    sizes = {path.stem: len(read_tasks(path)) for path in paths}
    assert sizes["bamboogle125_noparagraphs"] == 125
    assert sizes["triviaqa200_noparagraphs"] == sizes["nq_open200_noparagraphs"] == 200
    for name in RECALL:
        for task in read_tasks(DATA / f"{name}.jsonl"):
            assert task.supporting and exact_match(task.answers[0], task.answers)
    train = {task.question for task in read_tasks(DATA / "hotpotqa_train100.jsonl")}
    assert not train & {task.question for task in read_tasks(DATA / "hotpotqa_dev300.jsonl")}
