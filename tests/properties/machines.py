"""How a state machine with no model beside it is played."""

from __future__ import annotations

import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def play(machine: type[RuleBasedStateMachine], client: redis.Redis, examples: int, steps: int) -> None:
    """Play the same orders of rules each time; a failure prints its steps and is not made smaller."""
    bound = type(machine.__name__, (machine,), {"client": client})
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        phases=(Phase.generate,),
    )
    run_state_machine_as_test(bound, settings=profile)
