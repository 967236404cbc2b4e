"""Generated tasks: references run on the real backends, partitions share no slot value."""

import re
from collections import Counter

import pytest

from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.tasks.base import CATEGORIES
from rc_lib.tasks.generated import (
    SET_SIZES,
    generated_tasks,
    make_task,
)
from rc_lib.tasks.intents import INTENTS
from rc_lib.tasks.world import PARTITIONS, partition_of


def slot_values(task) -> set[str]:
    """Quoted strings and numbers of two or more digits in the reference calls.

    Options of a function (modes, car parts), fan speeds and sums are not slot values.
    """
    calls = " ".join(call for turn in task.reference for call in turn)
    calls = re.sub(r"(mode|option|order_type|ignitionMode|fanSpeed)=('[^']*'|\d+)", "", calls)
    if "add_then_multiply" in task.intents:
        calls = re.sub(r"multiply\(a=\d+", "", calls)
    strings = set(re.findall(r"'([^']*)'", calls)) - {"priority"}
    bare = re.sub(r"'[^']*'", "", calls)
    numbers = set(re.findall(r"(?<![\w.])(\d{2,})(?:\.5)?(?!\w)", bare))
    return {value.removeprefix("USR") for value in strings} | numbers


@pytest.mark.parametrize("name", SET_SIZES)
def test_sets_have_the_papers_category_sizes(name):
    counts = Counter(task.category for task in generated_tasks(name))
    assert counts == SET_SIZES[name]


@pytest.mark.parametrize("name", SET_SIZES)
def test_every_reference_earns_the_full_reward_on_the_real_backends(name):
    for task in generated_tasks(name, 120):
        env = BFCLEnv(task, protocol="merged", max_steps=8)
        env.reset()
        for action in task.actions:
            observation, _, terminated, _, _ = env.step(action)
            results = "\n".join(message.content for message in observation)
            assert not re.search(r'^(\{"error"|Error)', results, re.M), (task, action, results)
        assert terminated
        assert env.reward()["reward"] == 1.0, task


def test_doing_nothing_earns_nothing():
    for task in generated_tasks("test"):
        env = BFCLEnv(task, protocol="merged", max_steps=8)
        env.reset()
        env.step("[done()]")
        assert env.reward()["reward"] == 0.0, task


def test_train_and_test_share_no_slot_value():
    train = set().union(*(slot_values(t) for t in generated_tasks("train")))
    for name in ("test", "power", "unseen_wording"):
        held_out = set().union(*(slot_values(t) for t in generated_tasks(name)))
        assert len(held_out) > 100
        assert not train & held_out, sorted(train & held_out)[:5]


def test_slot_values_belong_to_the_partition_of_their_set():
    for name in SET_SIZES:
        wanted = "train" if name == "train" else "test"
        for task in generated_tasks(name, 40):
            assert {partition_of(value) for value in slot_values(task)} <= {wanted}, task


def test_partitions_cover_every_checksum_once():
    digits = [digit for owned in PARTITIONS.values() for digit in owned]
    assert sorted(digits) == list(range(10))


def test_sets_do_not_overlap():
    prompts = Counter()
    for name in SET_SIZES:
        prompts.update({task.turns for task in generated_tasks(name)})
    assert max(prompts.values()) == 1


def test_unseen_wordings_occur_in_no_training_task():
    def frames(intent, wordings):
        pieces = (re.split(r"\{\w+\}|\(|\)|\|", wording) for wording in wordings)
        return {max(parts, key=len).strip() for parts in pieces}

    trained = " ".join(" ".join(t.turns) for t in generated_tasks("train")).lower()
    for intent in INTENTS:
        for frame in frames(intent, [intent.unseen]):
            assert frame.lower() not in trained, (intent.name, frame)


def test_all_intents_and_seven_backends_are_used():
    tasks = generated_tasks("train")
    assert {name for task in tasks for name in task.intents} == {i.name for i in INTENTS}
    assert len({backend for task in tasks for backend in task.involved_classes}) == 7


def test_a_task_depends_on_its_id_alone():
    first = make_task("gen_train_base_7", "base", "train")
    make_task("gen_train_base_8", "base", "train")
    again = make_task("gen_train_base_7", "base", "train")
    assert first == again
    assert first.actions == again.actions


@pytest.mark.parametrize("category", CATEGORIES)
def test_categories_are_what_they_are_in_bfcl(category):
    task = next(t for t in generated_tasks("train") if t.category == category)
    empty = [turn for turn, calls in enumerate(task.reference) if not calls]
    if category == "miss_func":
        (turn,) = task.missed_function
        assert task.turns[turn] == "" and empty == [turn - 1]
        assert {c.split("(")[0] for c in task.reference[turn]} == set(task.missed_function[turn])
    elif category == "miss_param":
        assert len(empty) == 1 and "I meant" in task.turns[empty[0] + 1]
    else:
        assert not empty and not task.missed_function


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown task set 'dev'"):
        generated_tasks("dev")
    with pytest.raises(ValueError, match="'easy'"):
        make_task("x", "easy", "train")
