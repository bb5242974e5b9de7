"""An engine without a model: SGLang's protocol and log lines, timing from a scenario, faults on request."""
