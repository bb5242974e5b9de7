"""The ``emulated`` engine: a server that speaks SGLang's HTTP and prints its log lines.

``python -m tokgate.emulator [SGLang's own flags] [--scenario NAME|FILE] [--fault SPEC]...``

Its process tree is SGLang's: a parent that serves HTTP, one ``sglang::scheduler[_TPn]`` a rank, one
``sglang::detokenizer``; tokens really flow scheduler -> detokenizer -> HTTP. How long anything takes
comes from a scenario, so that a gate can be tried, taught and tested with no GPU. Formats follow real
output of SGLang 0.5.13.post1, 0.5.15.post1 and 0.5.23.
"""
