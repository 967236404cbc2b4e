"""The generated multi-hop world: what its partitions share, and that its references hold."""

from collections import Counter

import numpy as np
import pytest
import Stemmer

from rc_lib.envs.search import SearchEnv
from rc_lib.envs.tags import Tags
from rc_lib.retrieval import BM25Retriever
from rc_lib.tasks.multihop import (
    FORMER_SHARE,
    KINDS,
    RELATIONS,
    SET_SIZES,
    corpus,
    demonstration,
    expert_messages,
    multihop_tasks,
    names,
    question,
    world,
)


@pytest.fixture(scope="module", params=SET_SIZES)
def partition(request):
    return request.param


@pytest.fixture(scope="module")
def retriever(partition):
    return BM25Retriever(corpus(partition))


def make_env(task, retriever, **options):
    options = {"count_tokens": len, "observation_tokens": 2000} | options
    return SearchEnv(task, retriever, **options)


def test_every_reference_earns_full_reward_through_the_environment(partition, retriever):
    ranks = []
    for task in multihop_tasks(partition):
        env = make_env(task, retriever, max_turns=task.hops)
        env.reset()
        for number, message in enumerate(expert_messages(task)):
            _, reward, terminated, truncated, info = env.step(message)
            if not terminated:
                ranks.append(info["passages"].index(task.supporting[number]))
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert env.reward()["valid"] == 1.0
        assert env.reward()["searches"] == task.hops
    # Passages about former objects come first, so "copy from the first passage" is no solution.
    assert set(ranks) == {0, 1}
    assert 0.1 < np.mean(ranks) < 0.4


def test_without_the_last_search_the_answer_is_on_no_page_that_was_read(retriever, partition):
    misses = []
    for task in multihop_tasks(partition)[:60]:
        env = make_env(task, retriever)
        env.reset()
        seen = [env.step(message)[0][0].content for message in expert_messages(task)[:-2]]
        misses.append(task.answers[0] not in " ".join(seen))
    assert np.mean(misses) > 0.9


def test_partitions_share_no_question_no_fact_and_no_answer_path():
    parts = list(SET_SIZES)
    for i, one in enumerate(parts):
        for other in parts[i + 1 :]:
            mine, theirs = multihop_tasks(one), multihop_tasks(other)
            assert not {t.question for t in mine} & {t.question for t in theirs}
            assert not {t.path for t in mine} & {t.path for t in theirs}
            assert not set(world(one).items()) & set(world(other).items())
            assert not {p for t in mine for p in t.supporting} & {
                p for t in theirs for p in t.supporting
            }


def test_the_world_is_about_the_same_names_everywhere():
    entities = {name for some in names().values() for name in some}
    assert len(entities) == sum(KINDS.values())
    for partition in SET_SIZES:
        assert {passage.title for passage in corpus(partition)} == entities
        assert set(world(partition).values()) <= entities
        former = [p for p in corpus(partition) if "former" in p.text]
        assert len(former) / len(world(partition)) == pytest.approx(FORMER_SHARE, abs=0.05)


def test_objects_are_of_the_relations_kind_and_never_the_subject():
    kinds = {name: kind for kind, some in names().items() for name in some}
    for partition in SET_SIZES:
        for (subject, relation), value in world(partition).items():
            assert kinds[value] == RELATIONS[kinds[subject]][relation]
            assert value != subject
        assert len(set(corpus(partition))) == len(corpus(partition))


def test_tasks_are_distinct_interleaved_and_consistent_with_the_world():
    for name, sizes in SET_SIZES.items():
        tasks = multihop_tasks(name)
        assert Counter(task.hops for task in tasks) == dict(zip((1, 2, 3), sizes, strict=True))
        assert len({task.id for task in tasks}) == len({t.question for t in tasks}) == sum(sizes)
        assert multihop_tasks(name, 9) == tasks[:9]
        assert {task.hops for task in tasks[:3]} == {1, 2, 3}
        for task in tasks:
            entity = task.path[0]
            for relation, value in zip(task.path[1::2], task.path[2::2], strict=True):
                assert world(name)[entity, relation] == value
                entity = value
            assert task.answers == (entity,)
            assert len(set(task.path[::2])) == task.hops + 1
            assert task.question == task.asked == question(task.path[0], task.path[1::2])


def test_words_of_the_world_survive_stemming_apart():
    words = [name.lower() for some in names().values() for name in some]
    words += {relation for some in RELATIONS.values() for relation in some}
    stems = Stemmer.Stemmer("english").stemWords(words)
    assert len(set(stems)) == len(words)


def test_the_expert_repeats_what_it_copies():
    for task in multihop_tasks("train")[:50]:
        for message in expert_messages(task)[:-1]:
            thought, query = message.split(" </think> <search> ")
            assert query.removesuffix(" </search>") + "." in thought


def test_a_demonstration_may_speak_other_tags():
    tags = Tags("reason", "lookup", "found", "final")
    env = make_env(
        multihop_tasks("pretrain")[2], BM25Retriever(corpus("pretrain")), tags=tags, told=""
    )
    text = " ".join(message.content for message in demonstration(env, tags).messages)
    for name in ("reason", "lookup", "found", "final"):
        assert text.count(f"<{name}>") == text.count(f"</{name}>") > 0
    assert "<search>" not in text


def test_unknown_partitions_and_sets_are_refused():
    with pytest.raises(ValueError, match="'dev'"):
        world("dev")
    with pytest.raises(ValueError, match="'dev'"):
        multihop_tasks("dev")
