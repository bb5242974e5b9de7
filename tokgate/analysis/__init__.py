"""Pure functions on Samples: statistics, break-even, parity, power. No I/O, no clock."""
