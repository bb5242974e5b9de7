"""Record the option names of an unpacked SGLang wheel: ``python record_options.py VERSION WHEEL_FOLDER``.

Reads the sources with ``ast`` (nothing is imported or run) and writes ``options/<version>.txt``: one
option a line, ``(deprecated)`` behind those whose action only warns.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path


def options(folder: Path) -> dict[str, bool]:
    """Option -> whether it is deprecated."""
    runtime = folder / "sglang" / "srt"
    sources = [runtime / "server_args.py", *sorted((runtime / "arg_groups").rglob("*.py"))]
    found: dict[str, bool] = {}
    for source in sources:
        if source.is_file():
            for name, deprecated in _in_source(ast.parse(source.read_text())):
                found[name] = found.get(name, False) or deprecated
    return found


def _in_source(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            deprecated = any(
                word.arg == "action" and "Deprecated" in ast.unparse(word.value) for word in node.keywords
            )
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    yield str(argument.value), deprecated
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield from _field(node.target.id, node.annotation)


def _field(name: str, annotation: ast.expr) -> Iterator[tuple[str, bool]]:
    if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "A"):
        return
    names = ["--" + name.replace("_", "-")]
    for call in ast.walk(annotation):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Arg":
            words = {word.arg: word.value for word in call.keywords}
            if "no_cli" in words:
                return
            if "cli_name" in words:
                names = [ast.literal_eval(words["cli_name"])]
            if "aliases" in words:
                names += ast.literal_eval(words["aliases"])
    yield from ((option, False) for option in names)


if __name__ == "__main__":
    version, wheel = sys.argv[1], Path(sys.argv[2])
    lines = [name + " (deprecated)" * old for name, old in sorted(options(wheel).items())]
    target = Path(__file__).parent / "options" / f"{version}.txt"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} options -> {target}")
