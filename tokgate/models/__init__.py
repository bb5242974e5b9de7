"""Generated target + EAGLE-3 draft pairs whose output and accept length are known beforehand."""
