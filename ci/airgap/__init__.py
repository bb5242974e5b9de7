"""Carry an engine's environment to a runner without network: pack it here, unpack it there."""
