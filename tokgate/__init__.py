"""tokgate: a reproducible regression-test suite for LLM inference speed on SGLang.

The flow is one way: config -> server -> load -> samples -> analysis -> verdict -> report.
Importing the package costs nothing; each subpackage is imported where it is used.
"""

__version__ = "0.1.0"
