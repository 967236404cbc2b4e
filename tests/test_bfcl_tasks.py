"""The 800 tasks, their split and their documents."""

import json
from collections import Counter
from importlib import metadata

import pytest

from rc_lib.errors import RcError
from rc_lib.tasks import bfcl
from rc_lib.tasks.base import CATEGORIES, Task
from rc_lib.tasks.bfcl import bfcl_task, bfcl_tasks, function_docs, held_out_ids, task_number


def test_there_are_200_tasks_of_each_category():
    assert Counter(task.category for task in bfcl_tasks()) == dict.fromkeys(CATEGORIES, 200)
    assert len({task.id for task in bfcl_tasks()}) == 800


def test_the_test_set_has_five_ids_of_each_domain_block_in_each_category():
    test = bfcl_tasks("test")
    assert Counter(task.category for task in test) == dict.fromkeys(CATEGORIES, 20)
    assert Counter(number // 50 for number in held_out_ids()) == dict.fromkeys(range(4), 5)


def test_no_id_is_in_both_train_and_test():
    train, test = bfcl_tasks("train"), bfcl_tasks("test")
    assert (len(train), len(test)) == (720, 80)
    assert not {task_number(t.id) for t in train} & {task_number(t.id) for t in test}


def test_no_test_request_is_a_training_request():
    """Variants share their wording, so a leak would show as an equal conversation."""
    conversations = {tuple(filter(None, task.turns)) for task in bfcl_tasks("train")}
    assert not [t.id for t in bfcl_tasks("test") if tuple(filter(None, t.turns)) in conversations]


def test_every_task_survives_json():
    for task in bfcl_tasks():
        assert Task.from_json(task.to_json()) == task


def test_task_json_with_an_unknown_field_is_refused():
    text = json.dumps(json.loads(bfcl_task("multi_turn_base_0").to_json()) | {"turn": 1})
    with pytest.raises(ValueError, match="unknown fields turn"):
        Task.from_json(text)


def test_a_task_with_as_many_turns_as_references_only():
    with pytest.raises(ValueError, match="2 turns but 1"):
        Task("t", "base", ("a", "b"), {}, (), ((),))


def test_documents_and_functions_agree():
    from rc_lib.envs.backends import BACKENDS, functions

    classes = tuple(BACKENDS)
    task = Task("t", "base", ("",), {}, classes, ((),))
    table = functions(classes)
    docs = {doc["name"]: doc["parameters"] for doc in function_docs(task)}
    assert len(docs) == 128 and docs.keys() == table.keys()
    for name, parameters in docs.items():
        assert set(parameters["properties"]) == set(table[name].parameters), name
        assert set(parameters["required"]) == set(table[name].required), name


def test_withheld_documents_appear_at_their_turn_and_excluded_ones_never():
    for task in bfcl_tasks():
        names = [doc["name"] for doc in function_docs(task)]
        at_start = [doc["name"] for doc in function_docs(task, turn=0)]
        later = [
            doc["name"] for turn in task.missed_function for doc in function_docs(task, turn=turn)
        ]
        assert sorted(at_start + later) == sorted(names), task.id
        assert not set(names) & set(task.excluded_function)


def test_system_prompt_is_that_of_the_package():
    from bfcl_eval.constants import default_prompts

    style = default_prompts.PROMPT_STYLE_TEMPLATES["classic"]
    task = bfcl_task("multi_turn_base_0")
    expected = default_prompts._PLAINTEXT_SYSTEM_PROMPT_TEMPLATE.format(
        persona=style["persona"],
        task=style["task"],
        tool_call_format=style["tool_call_no_tag"].format(
            output_format=default_prompts.OUTPUT_FORMAT_MAPPING["python"],
            param_types=default_prompts.PARAM_TYPE_MAPPING["python"],
        ),
        multiturn_behavior=style["multiturn_behavior"],
        available_tools=style["available_tools"].format(
            format="json", functions=json.dumps(function_docs(task), indent=4)
        ),
    )
    assert bfcl.system_prompt(task) == expected


def test_constants_are_those_of_the_package():
    from bfcl_eval.constants import default_prompts

    from rc_lib.envs import bfcl as env

    assert env.STEPS_PER_TURN == default_prompts.MAXIMUM_STEP_LIMIT
    assert env.NEW_FUNCTIONS == default_prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC


@pytest.mark.parametrize(
    ("version", "message"), [(None, "not installed"), ("2025.1.1", "2025.1.1 is installed")]
)
def test_a_missing_or_other_package_is_named_with_the_command(monkeypatch, version, message):
    def installed(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", installed)
    bfcl._data.cache_clear()
    with pytest.raises(RcError, match=message) as caught:
        bfcl._data()
    assert "pip install --no-deps bfcl-eval==2026.3.23" in str(caught.value)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="split 'dev'"):
        bfcl_tasks("dev")
    with pytest.raises(ValueError, match="category 'hard'"):
        bfcl_tasks("all", "hard")
    for task_id in ("multi_turn_base_200", "base_1", ""):
        with pytest.raises(ValueError, match="no BFCL task"):
            bfcl_task(task_id)
