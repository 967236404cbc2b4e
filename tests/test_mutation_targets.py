"""The list of mutations does not rot: every old text is there, every named test exists."""

import ast

import pytest

from scripts.mutation_check import MUTATIONS, ROOT, Mutation, check, main, mutate, node_id, row

every_mutation = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)


@every_mutation
def test_the_old_text_stands_once_and_the_new_one_is_python(mutation):
    ast.parse(mutate(ROOT, mutation))


@every_mutation
def test_every_named_test_exists(mutation):
    assert mutation.tests
    for test in mutation.tests:
        path, name = node_id(test).split("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_names_and_changes_are_distinct():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    assert len({(m.file, m.old, m.new) for m in MUTATIONS}) == len(MUTATIONS)
    assert all(mutation.old != mutation.new for mutation in MUTATIONS)


@pytest.mark.parametrize(("old", "count"), [("not there", 0), ("import", "[2-9]")])
def test_a_text_that_does_not_stand_once_is_an_error(old, count):
    broken = Mutation("broken", "advantage.py", old, "x", ())
    with pytest.raises(ValueError, match=rf"'broken': '{old}' stands {count} times in rc_lib/adv"):
        mutate(ROOT, broken)


@pytest.fixture
def copy(tmp_path):
    """A repository of one module and two tests; one of them looks at nothing."""
    for folder in ("rc_lib", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "rc_lib" / "one.py").write_text("VALUE = 1\n")
    (tmp_path / "tests" / "test_one.py").write_text(
        "from rc_lib.one import VALUE\n\n"
        "def test_value():\n    assert VALUE == 1\n\n"
        "def test_nothing():\n    pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return tmp_path


def test_a_mutation_that_a_named_test_overlooks_survives_and_is_taken_back(copy, capsys):
    tests = ("one.py::test_value", "one.py::test_nothing")
    assert check(copy, Mutation("two", "one.py", "= 1", "= 2", tests)) == [tests[1]]
    assert (copy / "rc_lib" / "one.py").read_text() == "VALUE = 1\n"
    assert capsys.readouterr().out.splitlines() == [
        row("killed", "two", tests[0]),
        row("SURVIVED", "two", tests[1]),
    ]


def test_a_test_that_cannot_be_run_does_not_count_as_failed(copy):
    with pytest.raises(RuntimeError, match="'two': tests/test_one.py::test_gone"):
        check(copy, Mutation("two", "one.py", "= 1", "= 2", ("one.py::test_gone",)))


def test_an_unknown_part_of_a_name_is_an_error():
    with pytest.raises(ValueError, match="no mutation's name contains 'zebra'"):
        main("zebra")
