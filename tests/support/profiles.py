"""The Hypothesis profiles, and the seed of a run.

- `short` draws the same few examples in each run, so that no run depends on luck. It does not
  shrink an example that fails, which can take five minutes.
- `shrunk` draws the same as `short`, and shrinks an example that fails.
- `long`, the profile of a run with `--whole`, draws other examples in each run. The header of the
  run has the seed: with `--hypothesis-seed` a run draws the same again.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

__all__ = ["at_most", "choose_profile", "header"]

LONG = settings(
    derandomize=False,  # in CI, too, where Hypothesis has other defaults
    database=None,
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[
        HealthCheck.too_slow,  # a busy machine may be slow to draw the first examples
        HealthCheck.function_scoped_fixture,
    ],
)
SHRUNK = settings(LONG, derandomize=True, max_examples=5)
SHORT = settings(SHRUNK, phases=[Phase.explicit, Phase.generate])
settings.register_profile("long", LONG)
settings.register_profile("shrunk", SHRUNK)
settings.register_profile("short", SHORT)


def choose_profile(config: pytest.Config) -> None:
    """Load the profile of a run, and choose its seed; before Hypothesis reads its options."""
    draw_no_constants_of_modules()
    option = config.option
    if not option.hypothesis_profile:
        option.hypothesis_profile = "long" if option.whole else "short"
    settings.load_profile(option.hypothesis_profile)
    if option.hypothesis_seed is None and not settings().derandomize:
        option.hypothesis_seed = str(random.SystemRandom().getrandbits(32))  # for each process


def draw_no_constants_of_modules() -> None:
    """Let a seed draw the same whichever tests ran before.

    Hypothesis also draws constants of the modules that are loaded, and has no option for it. With
    a Hypothesis where this has no effect, tests/rig/test_profiles.py fails.
    """
    without = Constants()
    providers._get_local_constants = lambda: without


def header(config: pytest.Config) -> str:
    """Return how to repeat what Hypothesis draws in this run."""
    profile, seed = config.option.hypothesis_profile, config.option.hypothesis_seed
    told = "the same examples in each run" if seed is None else f"--hypothesis-seed={seed}"
    return f"hypothesis: profile {profile}, {told}"


def at_most(count: int) -> settings:
    """Return the settings of a test with this many examples, or with fewer in a short run."""
    return settings(max_examples=min(count, settings().max_examples))
