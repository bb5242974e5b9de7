"""``tokgate env``: make and list the environments of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokgate import environments
from tokgate.environments.environment import make, recipe_named, standing
from tokgate.environments.recipe import RECIPES

app = typer.Typer(help="Make and list the environments that engines run in.", no_args_is_help=True)

Root = Annotated[
    Path | None,
    typer.Option(
        help="Folder of made environments; by default TOKGATE_HOME/environments or the user's cache."
    ),
]


@app.command("make")
def make_command(
    name: Annotated[str, typer.Argument(help="One of those that 'tokgate env list' shows.")],
    root: Root = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build anew even if it is there.")] = False,
) -> None:
    """Make an engine's environment; at once when it is there already."""
    made = make(recipe_named(name), root or environments.root(), typer.echo, rebuild=rebuild)
    if not made.built:
        typer.echo(f"{name}: there already and unaltered, checked in {made.wall_s:.1f} s")
    engine = name if root is None else str(made.engine_file)
    typer.echo(f"{made.engine_file}\nuse it with: --engine {engine}")


@app.command("list")
def list_command(root: Root = None) -> None:
    """What can be made, and what is there."""
    folder = root or environments.root()
    width = max(map(len, RECIPES))
    for name, recipe in RECIPES.items():
        found = standing(recipe, folder)
        if found is None:
            state = "not made"
        else:
            state = f"made, {found.disk_bytes / 1e9:.1f} GB"
            state += "" if found.current else f"; not of this tokgate: tokgate env make {name}"
        typer.echo(f"{name:<{width}}  {recipe.summary}: {state}")
    typer.echo(f"in {folder}")
