"""The machine: GPU facts, fitness, contention counters, one lock per GPU."""
