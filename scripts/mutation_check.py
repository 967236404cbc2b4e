"""Break the library on purpose, one mutation at a time, and see that the named tests notice.

Run as ``python scripts/mutation_check.py [PART OF A NAME]``. Each mutation replaces one text in one
file of a temporary copy of the repository; the tests that must fail are run alone, in that copy.
Prints a table: killed or survived, mutation, test. Exits with 1 if a mutation survives a test, or a
named test fails without any mutation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 300  # of one run of pytest; each takes seconds


class Mutation(NamedTuple):
    """A wrong library: in `file`, `old` (found exactly once) becomes `new`; every test must fail.

    `file` lies in rc_lib; `tests` are pytest's node ids without ``tests/test_``.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


NAIVE_LOSS = ("loss.py::test_loss_matches_a_naive_loop",)
NAIVE_ADVANTAGES = (
    "advantage.py::test_matches_a_naive_loop_over_groups_of_unequal_size_in_any_order",
)
NO_CACHE = ("rollout.py::test_ids_equal_those_of_a_loop_without_a_cache",)
# fmt: off
MUTATIONS = [
    # Advantages and groups
    Mutation("the advantage's sign is flipped", "advantage.py",
             "rewards - groups.mean[groups.index]", "groups.mean[groups.index] - rewards",
             NAIVE_ADVANTAGES),
    Mutation("sample instead of population standard deviation", "advantage.py",
             "(rewards - mean[index]) ** 2) / size",
             "(rewards - mean[index]) ** 2) / np.maximum(size - 1, 1)",
             ("advantage.py::test_the_standard_deviation_is_the_population_one",)),
    Mutation("a group without spread divides rounding errors", "advantage.py",
             "(groups.high > groups.low)[groups.index]", "np.ones(len(rewards), dtype=bool)",
             ("advantage.py::test_a_constant_group_has_advantage_exactly_zero",)),
    Mutation("groups go by position, not by id", "advantage.py",
             "np.unique(group_ids, return_inverse=True)",
             "np.unique(np.arange(len(rewards)) // 5, return_inverse=True)",
             (*NAIVE_ADVANTAGES,
              "advantage.py::test_one_group_does_not_change_when_another_is_added")),
    Mutation("advantages are taken over the whole batch", "trainer.py",
             "group_advantages(rewards, group_ids,",
             "group_advantages(rewards, [0] * len(rewards),",
             ("mutations.py::test_logged_advantages_are_those_of_each_group_alone",)),
    Mutation("requests of a step share one group id", "trainer.py",
             "Request(self.make_env(task), group_id, member, token)",
             "Request(self.make_env(task), 0, 1000 * group_id + member, token)",
             ("trainer.py::test_every_group_is_recorded_with_its_tokens_and_rewards",)),
    Mutation("dynamic sampling trains on groups without spread", "trainer.py",
             "zip(rollouts, advantages, strict=True) if a != 0.0}",
             "zip(rollouts, advantages, strict=True)}",
             ("trainer.py::test_dynamic_sampling_trains_on_exactly_the_groups_with_spread",)),
    # Reward-goal tokens and demonstrations
    Mutation("high and low are swapped in the prompt", "policy.py",
             '"high": "<|high_reward|>", "low": "<|low_reward|>"',
             '"high": "<|low_reward|>", "low": "<|high_reward|>"',
             ("conditioning.py::test_goal_stands_at_the_end_of_the_first_user_message_only",)),
    Mutation("high and low are swapped in the draw", "conditioning.py",
             "HIGH if high else LOW", "LOW if high else HIGH",
             ("conditioning.py::test_iid_tokens_follow_p_sample_and_vary_in_number",
              "conditioning.py::test_stratified_counts_are_fixed_and_any_member_may_be_high")),
    Mutation("high and low are swapped in the statistics", "advantage.py",
             '"mu_high": mean_of("high")', '"mu_high": mean_of("low")',
             ("advantage.py::test_statistics_match_a_hand_made_step",)),
    Mutation("one token is drawn for a whole group", "conditioning.py",
             "draws.random(group_size) < self.p_high",
             "[draws.random() < self.p_high] * group_size",
             ("conditioning.py::test_iid_tokens_follow_p_sample_and_vary_in_number",)),
    Mutation("the token never reaches the prompt", "rows.py",
             "condition(messages, request.token)", "condition(messages, None)",
             ("rollout.py::test_each_rollout_starts_from_its_own_prompt",
              "trainer.py::test_tokens_vary_inside_a_group_and_reach_the_prompt")),
    Mutation("new reward tokens start at the mean embedding", "policy.py",
             "old.std(0) *", "0.0 *",
             ("policy.py::test_new_reward_tokens_have_distinct_embeddings_of_usual_size",)),
    Mutation("the number of demonstrations never falls", "curriculum.py",
             "shots = self.place(step, validity).shots", "shots = self.stages[0][0]",
             ("curriculum.py::test_first_shows_the_first_k",)),
    # Loss mask and spans
    Mutation("every token carries loss", "transcript.py",
             'mask[start:end] = kind == "model"', "mask[start:end] = True",
             ("transcript.py::test_mask_is_true_on_model_spans_only_and_includes_the_end_id",)),
    Mutation("the loss does not look at its mask", "loss.py",
             "per_token.masked_fill(~mask, 0.0)", "per_token",
             (*NAIVE_LOSS, "loss.py::test_all_masked_is_zero_and_not_nan")),
    Mutation("a span ends one id early", "transcript.py",
             "mask[start:end] =", "mask[start : end - 1] =",
             ("transcript.py::test_mask_is_true_on_model_spans_only_and_includes_the_end_id",)),
    Mutation("a token is scored by the logits behind it", "loss.py",
             "hidden[:, :-1][mask[:, 1:]]", "hidden[:, 1:][mask[:, 1:]]",
             ("loss.py::test_logprobs_and_entropy_match_all_logits_at_once",)),
    # Loss
    Mutation("the loss's sign is flipped", "loss.py",
             "-torch.minimum(", "torch.minimum(", NAIVE_LOSS),
    Mutation("the larger of ratio and clipped ratio counts", "loss.py",
             "torch.minimum(", "torch.maximum(", NAIVE_LOSS),
    Mutation("the ratio is not clipped", "loss.py",
             "ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)", "ratio", NAIVE_LOSS),
    Mutation("the KL has the wrong sign", "loss.py",
             "+ beta * kl", "- beta * kl",
             (*NAIVE_LOSS, "loss.py::test_kl_pulls_back_a_policy_that_is_far_above_its_reference")),
    Mutation("the KL is k1", "loss.py",
             "kl = log_ratio.exp() - log_ratio - 1.0", "kl = -log_ratio", NAIVE_LOSS),
    Mutation("the reference is the policy itself", "update.py",
             "copy.deepcopy(policy.model)", "policy.model",
             ("trainer.py::test_reference_is_a_frozen_copy_of_the_start",)),
    Mutation("RL averages over each micro-batch", "loss.py",
             "per_row.sum() / normalizer", "per_row.mean()",
             ("loss.py::test_micro_batches_add_up_to_the_whole_batch",
              "trainer.py::test_the_gradient_does_not_depend_on_the_micro_batch")),
    Mutation("fine-tuning averages over each micro-batch", "sft.py",
             ".sum() / total", ".mean()",
             ("sft.py::test_the_step_does_not_depend_on_how_a_batch_is_cut",)),
    Mutation("the policy scores itself instead of the recorded log-probabilities", "update.py",
             'batch["old_logprobs"],', "logprobs.detach(),",
             ("mutations.py::test_the_ratio_is_taken_to_the_recorded_logprobs",)),
    # Sampling
    Mutation("recorded log-probabilities ignore the temperature", "rows.py",
             "logprobs.gather(-1, ids)", "logits.float().log_softmax(-1).gather(-1, ids)",
             ("rollout.py::test_recorded_logprobs_equal_a_fresh_forward_pass",)),
    Mutation("the update ignores the temperature of the sampling", "update.py",
             "temperature=self.config.temperature", "temperature=1.0",
             ("mutations.py::test_the_first_ratio_is_one_at_any_temperature",)),
    Mutation("members with different tokens share the keys behind the tokens", "rows.py",
             "if len(set(column)) > 1:", "if False:", NO_CACHE),
    Mutation("a group gets the keys of another group", "rows.py",
             "{slot: leader for slot in", "{slot: 0 for slot in", NO_CACHE),
    Mutation("the loss shares the states of prompts that differ", "loss.py",
             "ids[order][1:, :limit] == ids[order][:-1, :limit]",
             "ids[order][1:, :limit] >= -1",
             ("loss.py::test_what_rows_share_is_computed_once_with_the_same_values_and_gradients",)),
    Mutation("members of a group draw the same numbers", "rows.py",
             "rng(*self.address, request.group_id, request.member)",
             "rng(*self.address, request.group_id)",
             ("rollout.py::test_draws_depend_on_seed_purpose_step_group_and_member",)),
    # Reward and environment
    Mutation("the environment gets the prompt's text with the model's", "rows.py",
             "self.policy.decode(row.turn_ids)", "self.policy.decode(row.transcript.ids)",
             ("rollout.py::test_environments_are_stepped_once_a_turn_with_the_text_of_the_turn",)),
    Mutation("the reward is the goal in the prompt", "rollout.py",
             'float(parts["reward"])', 'float(request.token == "high")',
             ("rollout.py::test_environments_are_stepped_once_a_turn_with_the_text_of_the_turn",)),
    Mutation("the reward of a search reads the prompt too", "envs/tool.py",
             'self.reward_scope == "prompt+response"', "True",
             ("search_env.py::test_an_empty_response_earns_nothing_or_what_the_prompt_earns",
              "search_env.py::test_the_official_scope_grades_the_last_demonstration_where_"
              "there_is_no_answer")),
    Mutation("the reward forgets the required calls", "envs/bfcl.py",
             "float(state and action)", "float(state)",
             ("mutations.py::test_the_right_state_without_the_required_call_earns_nothing",)),
    Mutation("private methods of the backends may be called", "envs/backends.py",
             'if name.startswith("_"):', 'if name.startswith("__"):',
             ("mutations.py::test_only_listed_functions_exist_for_the_model",)),
    Mutation("withheld and excluded functions may be called", "envs/bfcl.py",
             "self._turn < self._barred.get(call.name, 0)", "False",
             ("bfcl_env.py::test_withheld_and_excluded_functions_do_not_exist",)),
    Mutation("special tokens in a tool's answer are real ones", "policy.py",
             'split_special_tokens=role == "tool"', "split_special_tokens=False",
             ("policy.py::test_special_tokens_in_tool_text_are_plain_characters",)),
    Mutation("a model's text is markup on the explorer's page", "explore.py",
             "autoescape=True", "autoescape=False",
             ("explore.py::test_no_text_of_a_model_becomes_markup",)),
    # Going on after a kill
    Mutation("a resumed run forgets the optimizer's state", "checkpoint.py",
             "state[places[name]][kind] = tensor", "pass",
             ("checkpoint.py::test_weights_optimizer_and_logs_come_back",
              "trainer.py::test_a_longer_run_goes_on_from_a_shorter_one")),
]
# fmt: on


def node_id(test: str) -> str:
    """Return pytest's node id of a test as `MUTATIONS` names it."""
    return f"tests/test_{test}"


def row(verdict: str, name: str, test: str) -> str:
    """Return a row of the table that is printed."""
    return f"{verdict:<9} {name:<{max(len(m.name) for m in MUTATIONS)}}  {test}"


def mutate(root: Path, mutation: Mutation) -> str:
    """Return the mutated text of the mutation's file.

    Args:
        root: a copy of the repository; not changed.
        mutation: what to replace.

    Raises:
        ValueError: if the old text does not stand in the file exactly once.
    """
    text = (root / "rc_lib" / mutation.file).read_text(encoding="utf-8")
    if (count := text.count(mutation.old)) != 1:
        raise ValueError(
            f"mutation {mutation.name!r}: {mutation.old!r} stands {count} times in "
            f"rc_lib/{mutation.file}, must stand once; choose another text in {Path(__file__).name}"
        )
    return text.replace(mutation.old, mutation.new)


def copy_repository(target: Path) -> None:
    """Copy the files that git tracks or does not ignore, as they are in the working tree."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in listing.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(root: Path, *tests: str) -> tuple[int, str]:
    """Run tests in a copy; return pytest's exit status and output."""
    words = ["-x", "-q", "-p", "no:cacheprovider", "--tb=short", *map(node_id, tests)]
    # A mutated file may have the size and the second of the one before: no compiled copies.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def check(root: Path, mutation: Mutation) -> list[str]:
    """Apply a mutation to a copy, run its tests, take it back; return the tests that it survived.

    Raises:
        ValueError: if the old text does not stand in the file exactly once.
        RuntimeError: if a test could not be run at all.
    """
    path = root / "rc_lib" / mutation.file
    original, survived = path.read_bytes(), []
    path.write_text(mutate(root, mutation), encoding="utf-8")
    try:
        for test in mutation.tests:
            status, output = run_tests(root, test)
            if status not in (0, 1):  # 1: tests were run and failed
                raise RuntimeError(f"mutation {mutation.name!r}: {node_id(test)}:\n{output}")
            if status == 0:
                survived.append(test)
            print(row("killed" if status else "SURVIVED", mutation.name, test), flush=True)
    finally:
        path.write_bytes(original)
    return survived


def main(part: str = "") -> int:
    """Check the mutations whose name contains `part`; return the exit status."""
    chosen = [mutation for mutation in MUTATIONS if part in mutation.name]
    if not chosen:
        raise ValueError(f"no mutation's name contains {part!r}")
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        root = Path(folder).resolve()
        copy_repository(root)
        for mutation in chosen:  # before the first run
            mutate(root, mutation)
        status, output = run_tests(root, *{test for m in chosen for test in m.tests})
        if status:
            print(f"the named tests do not pass without a mutation:\n{output}")
            return 1
        print(row("", "mutation", "test"))
        survived = [mutation.name for mutation in chosen if check(root, mutation)]
    print(f"{len(chosen)} mutations, survived: {'; '.join(survived) or 'none'}")
    return int(bool(survived))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
