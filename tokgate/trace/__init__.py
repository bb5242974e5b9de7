"""Profiler traces: Chrome trace files of torch's profiler (Kineto), read as a stream; knows nothing of SGLang."""
