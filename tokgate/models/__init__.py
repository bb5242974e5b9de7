"""Models with a known truth: a synthetic target, its EAGLE-3 draft, and the guard before a launch."""
