"""Blocks of launches: several servers up side by side, measured in turns, until a verdict is decided."""
