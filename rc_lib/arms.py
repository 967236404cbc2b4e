"""Every arm as data: where it starts, what its prompts carry, which settings it replaces.

Table 1's four arms and those that the paper lacks stand in one table, so that two arms differ in
what their rows differ in and in nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from rc_lib.config import FineTuneConfig, Profile, RLConfig

HIGH, LOW = "high", "low"


@dataclass(frozen=True)
class Start:
    """A policy of stage 1.

    Attributes:
        name, label: in files, and for a reader.
        token: reward-goal token of the references, None for none.
        failures: imitate one failure a task too, under the low token.
        like_rctp: take RCTP-FT's number of row updates instead of SFT's.
        placeholder: text in place of the references' observations; failures keep their real ones.
    """

    name: str
    label: str
    token: str | None = None
    failures: bool = False
    like_rctp: bool = False
    placeholder: str | None = None

    def epochs(self, config: FineTuneConfig) -> int:
        """Return the passes over the rows: RCTP-FT has two rows a task, so one row needs twice.

        >>> STARTS["rctp"].epochs(FineTuneConfig()), STARTS["sft_equal"].epochs(FineTuneConfig())
        (5, 10)
        """
        if not self.like_rctp:
            return config.sft_epochs
        return config.rctp_epochs * (1 if self.failures else 2)


@dataclass(frozen=True)
class Arm:
    """A run of stage 2.

    Attributes:
        name, label: in files, and for a reader.
        start: name of its start.
        conditioning: kind of `rc_lib.conditioning.Conditioning`.
        p_high: P_sample(high); None takes the profile's.
        rl: fields of `RLConfig` that it replaces.
        rollouts: its rollouts a step as a share of the profile's.
    """

    name: str
    label: str
    start: str
    conditioning: str = "none"
    p_high: float | None = None
    rl: Mapping[str, object] = field(default_factory=dict)
    rollouts: Fraction = Fraction(1)

    def config(self, profile: Profile) -> RLConfig:
        """Return the profile's settings with this arm's in their place.

        The prompts a step follow from the rollouts a step and the group size.

        Raises:
            ValueError: if the rollouts a step are not a whole number of groups.

        >>> from rc_lib.config import get_profile
        >>> config = RL_ARMS["rctp_rc_g2"].config(get_profile("tiny"))
        >>> config.prompts_per_step, config.group_size
        (60, 2)
        """
        usual = profile.rl
        config = replace(usual, **self.rl)
        rollouts = usual.prompts_per_step * usual.group_size * self.rollouts
        prompts = rollouts / config.group_size
        if prompts.denominator != 1:
            raise ValueError(
                f"arm {self.name}: {rollouts} rollouts a step of profile {profile.name} are no "
                f"whole number of groups of {config.group_size}; change prompts_per_step"
            )
        return replace(config, prompts_per_step=int(prompts))


@dataclass(frozen=True)
class Evaluation:
    """On which sets and by which decodings an arm is tested; always under every token."""

    test_sets: tuple[str, ...]
    decodings: tuple[str, ...]


def _by_name(*rows):
    return {row.name: row for row in rows}


QUARTER = Fraction(1, 4)
STARTS = _by_name(
    Start("sft", "SFT"),
    Start("rctp", "RCTP-FT", HIGH, failures=True, like_rctp=True),
    Start("sft_equal", "SFT, RCTP-FT's row updates", like_rctp=True),
    Start("rctp_success", "RCTP-FT, successes only", HIGH, like_rctp=True),
    Start(
        "rctp_cue", "RCTP-FT, placeholder observations in successes", HIGH, failures=True,
        like_rctp=True, placeholder='{"status": "ok"}',
    ),
)  # fmt: skip
RL_ARMS = _by_name(
    Arm("sft_grpo", "SFT+GRPO", "sft"),
    Arm("sft_rc_grpo", "SFT+RC-GRPO", "sft", "iid"),
    Arm("rctp_grpo", "RCTP-FT+GRPO", "rctp"),
    Arm("rctp_rc_grpo", "RCTP-FT+RC-GRPO", "rctp", "iid"),
    # Stage 1 at equal row updates, and what the mix and its observations give.
    Arm("sft_equal_grpo", "long SFT+GRPO", "sft_equal"),
    Arm("sft_equal_rc_grpo", "long SFT+RC-GRPO", "sft_equal", "iid"),
    Arm("success_rc_grpo", "success-only RCTP-FT+RC-GRPO", "rctp_success", "iid"),
    Arm("cue_rc_grpo", "style-cue RCTP-FT+RC-GRPO", "rctp_cue", "iid"),
    # Spread in a group by other means.
    Arm("rctp_rc_stratified", "RC-GRPO, stratified tokens", "rctp", "stratified"),
    Arm("sft_grpo_dynamic", "SFT+GRPO, dynamic sampling", "sft", rl={"dynamic_rounds": 3}),
    Arm(
        "rctp_rc_grpo_dynamic", "RC-GRPO, dynamic sampling", "rctp", "iid",
        rl={"dynamic_rounds": 3},
    ),
    Arm("sft_grpo_hot", "SFT+GRPO, temperature 1.3", "sft", rl={"temperature": 1.3}),
    Arm("sft_grpo_entropy", "SFT+GRPO, entropy bonus", "sft", rl={"entropy_bonus": 0.01}),
    # P_sample(high), the profile's being 0.5.
    Arm("rctp_rc_p000", "RC-GRPO, P(high) 0", "rctp", "iid", 0.0),
    Arm("rctp_rc_p025", "RC-GRPO, P(high) 0.25", "rctp", "iid", 0.25),
    Arm("rctp_rc_p075", "RC-GRPO, P(high) 0.75", "rctp", "iid", 0.75),
    Arm("rctp_rc_p100", "RC-GRPO, P(high) 1", "rctp", "iid", 1.0),
    # Group size at equal rollouts a step.
    Arm("rctp_rc_g2", "RC-GRPO, G = 2", "rctp", "iid", rl={"group_size": 2}),
    Arm("rctp_rc_g10", "RC-GRPO, G = 10", "rctp", "iid", rl={"group_size": 10}),
    # The paper's GRPO has a quarter of RC-GRPO's batch (64 and 256; Tables 10-11).
    Arm("sft_grpo_quarter", "SFT+GRPO, a quarter of the prompts", "sft", rollouts=QUARTER),
    Arm("rctp_grpo_quarter", "RCTP-FT+GRPO, a quarter of the prompts", "rctp", rollouts=QUARTER),
)  # fmt: skip

MAIN_STARTS = ("sft", "rctp")
EXTRA_STARTS = tuple(name for name in STARTS if name not in MAIN_STARTS)
EXTRA_RL = tuple(RL_ARMS)[4:]
EXTRA_ARMS = (*EXTRA_STARTS, *EXTRA_RL)

FULL = Evaluation(("test", "power", "unseen_wording"), ("greedy", "sampled"))
SHORT = Evaluation(("test", "power"), ("greedy",))


def rl_arm(name: str) -> Arm:
    """Return a run of stage 2 by name.

    Raises:
        ValueError: for an arm without a second stage.

    >>> rl_arm("rctp_rc_grpo").start
    'rctp'
    """
    if name not in RL_ARMS:
        raise ValueError(f"arm {name!r} has no RL stage; choose from {', '.join(RL_ARMS)}")
    return RL_ARMS[name]


def extra_start(name: str) -> Start:
    """Return a start that notebook 10 does not make, by name.

    Raises:
        ValueError: for another name.

    >>> extra_start("sft_equal").token is None
    True
    """
    if name not in EXTRA_STARTS:
        raise ValueError(f"start {name!r} is not one of {', '.join(EXTRA_STARTS)}")
    return STARTS[name]


def evaluation(arm: str) -> Evaluation:
    """Return how an arm is tested: Table 1's in full, the others on two sets, greedily.

    >>> evaluation("rctp_rc_g2").decodings
    ('greedy',)
    """
    return SHORT if arm in EXTRA_ARMS else FULL


def main_token(arm: str) -> str:
    """Return the token that an arm was trained with most, which its accuracy is shown under.

    High where both are equally likely, ``"none"`` where its last stage had no tokens.

    >>> [main_token(arm) for arm in ("rctp_grpo", "rctp_rc_grpo", "rctp_rc_p025", "rctp_cue")]
    ['none', 'high', 'low', 'high']
    """
    if arm in RL_ARMS:
        row = RL_ARMS[arm]
        if row.conditioning == "none":
            return "none"
        return LOW if row.p_high is not None and row.p_high < 0.5 else HIGH
    return "none" if arm == "base" else STARTS[arm].token or "none"
