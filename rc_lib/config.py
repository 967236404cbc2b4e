"""Profiles and hyperparameters as data: each value with the papers' statement or our reason."""

from dataclasses import dataclass, field

ARMS = ("sft_grpo", "sft_rc_grpo", "rctp_grpo", "rctp_rc_grpo")
ALL_ARMS = ("base", "sft", "rctp", *ARMS)
MEASUREMENTS = ("variance",)  # recorded beside the arms of a seed


@dataclass(frozen=True)
class FineTuneConfig:
    """Supervised stage (SFT and RCTP-FT; RC-GRPO Tables 10-12)."""

    learning_rate: float = 2e-3  # paper 1e-5 for 7-8B models; a 1M-parameter model needs more
    batch_size: int = 16  # paper: 16
    sft_epochs: int = 2  # paper: 2.0
    rctp_epochs: int = 5  # paper: 5.0
    warmup_share: float = 0.05  # unspecified; chosen to keep the first AdamW steps small
    weight_decay: float = 0.0  # unspecified; AdamW is named, its decay is not
    max_grad_norm: float = 1.0  # unspecified; usual


@dataclass(frozen=True)
class RLConfig:
    """Group-relative stage (RC-GRPO Tables 10-12; what the paper leaves open is said so)."""

    steps: int = 60  # paper: 400 epochs at batch 256; two passes over 720 tasks fit the machine
    prompts_per_step: int = 24  # paper: batch 256 (RC-GRPO), 64 (GRPO); equal in all arms here
    group_size: int = 5  # paper: 5
    learning_rate: float = 3e-4  # paper: 1e-6 for 7-8B models
    warmup_steps: int = 5  # unspecified
    clip_ratio: float = 0.2  # paper: 0.2
    beta: float = 0.1  # paper: 0.1, KL to the stage-1 policy
    temperature: float = 1.0  # unspecified
    minibatches: int = 1  # unspecified; 1 is fully on-policy
    micro_batch_tokens: int = 4096  # memory only; the gradient does not depend on it
    max_grad_norm: float = 1.0  # unspecified
    weight_decay: float = 0.0  # unspecified
    loss_type: str = "grpo"  # mean over a rollout's tokens, then over rollouts
    advantage_eps: float = 1e-6  # eps_stab, unspecified
    max_new_tokens: int = 64  # tokens of one assistant message
    max_length: int = 512  # tokens of a whole transcript
    rollout_batch_size: int = 256
    checkpoint_every: int = 10
    entropy_bonus: float = 0.0  # weight of the entropy in the loss; 0 in the paper's objective
    dynamic_rounds: int = 0  # rounds of dynamic sampling a step (DAPO); 0: off, as in the paper
    groups_logged: int = 2  # groups of a step whose rollouts are written to rollouts.jsonl


@dataclass(frozen=True)
class Profile:
    """Everything that a run of one size needs to know."""

    name: str
    model: str  # label in the tables
    base: str  # folder of the base policy, relative to the repository, or a hub name
    machine: str
    train_tasks: int | None  # None: all 720
    test_tasks: dict[str, int | None]  # test set -> number of tasks, None: all
    max_steps: int  # assistant messages of an episode
    observation_chars: int  # an observation is cut there, with a visible marker
    group_tasks: int  # training tasks whose groups stage 1 measures, categories interleaved
    evaluation_temperature: float  # of the "sampled" decoding
    fine_tune: FineTuneConfig = field(default_factory=FineTuneConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    p_high: float = 0.5  # paper: 0.5


PROFILES = {
    "smoke": Profile(
        name="smoke",
        model="tiny-base",
        base="models/tiny-base",
        machine="CI, about two minutes in all",
        train_tasks=16,
        test_tasks={"test": 8, "power": 8, "unseen_wording": 8},
        max_steps=7,
        observation_chars=100,
        group_tasks=16,
        evaluation_temperature=1.0,
        fine_tune=FineTuneConfig(sft_epochs=1, rctp_epochs=1),
        rl=RLConfig(steps=2, prompts_per_step=4, checkpoint_every=1),
    ),
    "tiny": Profile(
        name="tiny",
        model="tiny-base",
        base="models/tiny-base",
        machine="2 CPU cores, 80 minutes for five seeds",
        train_tasks=None,
        test_tasks={"test": None, "power": None, "unseen_wording": None},
        max_steps=7,
        observation_chars=100,
        group_tasks=160,
        evaluation_temperature=1.0,
    ),
}


def get_profile(name: str) -> Profile:
    """Return a profile by name.

    Raises:
        ValueError: for an unknown name.

    >>> get_profile("tiny").rl.group_size
    5
    """
    if name not in PROFILES:
        raise ValueError(f"unknown profile {name!r}; choose from {', '.join(PROFILES)}")
    return PROFILES[name]
