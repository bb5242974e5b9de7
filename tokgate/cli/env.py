"""``tokgate env``: make, list and remove the environments of engines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tokgate import environments
from tokgate.environments import engine, environment, installer, shelf
from tokgate.environments.environment import standing
from tokgate.environments.recipe import RECIPES
from tokgate.environments.wanted import parse, python_version
from tokgate.errors import UsageFault

app = typer.Typer(help="Make, list and remove the environments that engines run in.", no_args_is_help=True)

Root = Annotated[
    Path | None,
    typer.Option(
        help="Folder of made environments; by default TOKGATE_HOME/environments or the user's cache."
    ),
]


@app.command("make")
def make_command(
    what: Annotated[
        str,
        typer.Argument(
            help="sglang==VERSION, 'sglang @ git+URL@COMMIT', commit:SHA, a wheel, a folder; or a built-in "
            "one that 'tokgate env list' shows."
        ),
    ],
    root: Root = None,
    repo: Annotated[Path | None, typer.Option(help="Local clone, for commit:SHA.")] = None,
    python: Annotated[
        str | None,
        typer.Option(help="CPython's version, 3.8 or later, as in 3.12; by default the running one."),
    ] = None,
    keep_gib: Annotated[
        float | None,
        typer.Option(min=0, help="Afterwards remove the least recently used environments beyond this, GiB."),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Resolve and build anew even if it is there.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Resolve only, and print the lock.")] = False,
) -> None:
    """Make an engine's environment; at once when it is there already."""
    folder = root or environments.root()
    if what in RECIPES:
        if repo or python or dry_run:
            raise UsageFault(f"'{what}' has a lock of its own: --repo, --python and --dry-run do not apply")
        name = _make_recipe(what, folder, rebuild)
    else:
        wanted = parse(what, repo)
        if python is not None:
            python_version(python)
        if dry_run:
            found = engine.resolved(wanted, folder, _aside, python or installer.running(), anew=True)
            typer.echo(found.text, nl=False)
            count, digest = len(found.lock.versions), found.lock.digest[:12]
            _aside(f"{found.name}: {count} packages, lock {digest}; nothing was made")
            return
        made = engine.make(wanted, folder, typer.echo, python=python, rebuild=rebuild)
        name = made.name
        _done(name, made.built, made.wall_s, made.engine_file, name if root is None else None)
    if keep_gib is not None:
        shelf.bound(folder, keep_gib, name, typer.echo)


def _make_recipe(name: str, folder: Path, rebuild: bool) -> str:
    made = environment.make(RECIPES[name], folder, typer.echo, rebuild=rebuild)
    short = name if folder == environments.root() else None
    _done(name, made.built, made.wall_s, made.engine_file, short)
    return name


def _done(name: str, built: bool, wall_s: float, engine_file: Path, short: str | None) -> None:
    if not built:
        typer.echo(f"{name}: there already and unaltered, checked in {wall_s:.1f} s")
    typer.echo(f"{engine_file}\nuse it with: --engine {short or engine_file}")


def _aside(line: str) -> None:
    typer.echo(line, err=True)


@app.command("list")
def list_command(root: Root = None) -> None:
    """What is built in, and what is there."""
    folder = root or environments.root()
    there = {item.name: item for item in shelf.kept(folder)}
    width = max(map(len, [*RECIPES, *there]))
    for name, recipe in RECIPES.items():
        found = standing(recipe, folder)
        if found is None:
            state = "not made"
        else:
            state = f"made, {found.disk_bytes / 1e9:.1f} GB"
            state += "" if found.current else f"; not of this tokgate: tokgate env make {name}"
        typer.echo(f"{name:<{width}}  {recipe.summary}: {state}")
    for name, item in there.items():
        if name in RECIPES:
            continue
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.used_at))
        typer.echo(f"{name:<{width}}  {_what(item, folder)}: {item.disk_bytes / 1e9:.1f} GB, used {used}")
    typer.echo(f"in {folder}: {sum(item.disk_bytes for item in there.values()) / 1e9:.1f} GB")


def _what(item: shelf.Kept, folder: Path) -> str:
    if item.folder.parent != folder:
        return "a built wheel"
    if not item.version:
        return "not usable: its maker was killed"
    return f"version {item.version}" + (f" from {item.made_from}" if item.made_from else "")


@app.command("remove")
def remove_command(
    name: Annotated[str, typer.Argument(help="One of those that 'tokgate env list' shows.")],
    root: Root = None,
) -> None:
    """Remove an environment; refused while a process runs in it."""
    shelf.remove(name, root or environments.root(), typer.echo)
