"""What a cycle of decoding is made of: traces, logs and rooflines of a run, and what follows for a net gain."""
