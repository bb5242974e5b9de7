"""From a profile to a running server and back: launch, phases with deadlines, pool, forensics, teardown."""
