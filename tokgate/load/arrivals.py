"""When requests are sent in an open loop: an absolute schedule, fixed before the run."""

from __future__ import annotations

import math
import random

from tokgate.config.workloads import Arrival
from tokgate.errors import UsageFault
from tokgate.load.prompts import PromptSet


def schedule(arrival: Arrival, count: int, prompts: PromptSet) -> list[float]:
    """Seconds from the run's start at which each request is due, ascending.

    Args:
        arrival: the process; ``poisson`` draws independent exponential gaps of mean 1 / rate from its seed.
        count: number of requests.
        prompts: for a replayed trace, the holder of the times.

    Raises:
        UsageFault: no rate, or a trace without times.
    """
    if arrival.process == "trace":
        if prompts.at_s is None:
            raise UsageFault("arrival 'trace' needs prompts of kind 'trace' with 'at_s' on every line")
        return list(prompts.at_s[:count])
    rate = arrival.rate_per_s
    if rate is None:
        raise UsageFault(f"arrival '{arrival.process}' needs 'rate_per_s'")
    if arrival.process == "constant":
        return [i / rate for i in range(count)]
    uniform = random.Random(arrival.seed).random
    at, times = 0.0, []
    for _ in range(count):
        times.append(at)
        at -= math.log(1.0 - uniform()) / rate
    return times
