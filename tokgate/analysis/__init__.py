"""Pure functions on Samples: statistics, break-even, parity, power. No clock, no I/O but calibrations."""
