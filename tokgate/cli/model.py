"""``tokgate model``: make, verify and question synthetic target + draft pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokgate.errors import UsageFault

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Synthetic target + EAGLE-3 draft pairs.")


@app.command()
def make(
    preset: Annotated[str, typer.Argument(help="tiny, small, 1b, 8b or 70b-layers")],
    out: Annotated[Path, typer.Option("--out", help="folder to write: target/, draft/, truth.json")],
    seed: Annotated[int, typer.Option("--seed", help="decides every weight")] = 0,
    accept_length: Annotated[
        float | None, typer.Option("--accept-length", help="mean accept length, 1 to steps + 1")
    ] = None,
    agreement: Annotated[
        float | None, typer.Option("--agreement", help="share of tokens that the draft gets right, 0 to 1")
    ] = None,
    wrong_every: Annotated[
        int | None, typer.Option("--wrong-every", help="the draft errs on every n-th token")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="draft steps for which the dial holds (topk 1)")] = 3,
    near_tie: Annotated[
        int | None, typer.Option("--near-tie", help="every n-th token is a near-tie, to test tie handling")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="at a time (default: one a core)")] = None,
    target_of: Annotated[
        Path | None,
        typer.Option("--target-of", help="a pair with the same target: link its files, make the draft alone"),
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", help="auto, numpy or torch: where noise is made; the same bytes")
    ] = "auto",
) -> None:
    """Write a pair whose greedy output and accept length are known beforehand."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    from tokgate.models import maker

    if seed < 0:
        raise UsageFault(f"--seed must not be negative, got {seed}")
    if workers is not None and workers < 1:
        raise UsageFault(f"--workers must be at least 1, got {workers}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"making {preset}", total=None)
        truth = maker.make(
            preset,
            out,
            seed=seed,
            accept_length=accept_length,
            agreement=agreement,
            wrong_every=wrong_every,
            steps=steps,
            near_tie=near_tie,
            workers=workers,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            target_of=target_of,
            backend=backend,
        )
    typer.echo(f"target  {out / 'target'}")
    typer.echo(f"draft   {out / 'draft'}")
    typer.echo(f"truth   {out / 'truth.json'}")
    typer.echo(f"accept length {truth.accept_length:.4f} predicted at {truth.dial.steps} steps, topk 1")


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="folder that `tokgate model make` wrote")],
    hashes: Annotated[bool, typer.Option("--hashes/--no-hashes", help="compare every file's SHA-256")] = True,
) -> None:
    """Check a pair against its truth by an independent forward pass in numpy."""
    from tokgate.models import checkup

    report = checkup.verify(folder, hashes=hashes)
    for line in report.lines():
        typer.echo(line)
    if report.faults:
        raise typer.Exit(1)


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="folder that `tokgate model make` wrote")],
    prompt_ids: Annotated[
        str, typer.Option("--prompt-ids", help="token ids with commas, or @FILE with a JSON list")
    ],
    tokens: Annotated[int, typer.Option("--tokens", help="tokens to generate")] = 256,
    steps: Annotated[int | None, typer.Option("--steps", help="draft steps (default: the dial's)")] = None,
    output: Annotated[bool, typer.Option("--output", help="print the predicted output ids as well")] = False,
) -> None:
    """Print the verify count that a greedy request must report, as JSON."""
    import json

    from tokgate.models.truth import load_truth, predicted_output, predicted_verify_count

    truth = load_truth(folder)
    ids = parse_ids(prompt_ids)
    used = truth.dial.steps if steps is None else steps
    if used < 1:
        raise UsageFault(f"--steps must be at least 1, got {used}")
    count = predicted_verify_count(truth, ids, tokens, used)
    answer: dict[str, object] = {
        "prompt_tokens": len(ids),
        "new_tokens": tokens,
        "steps": used,
        "verify_count": count,
        "accept_length": (tokens - 1) / count if count else None,
    }
    if output:
        answer["output_ids"] = predicted_output(truth, ids, tokens)
    typer.echo(json.dumps(answer))


def parse_ids(text: str) -> list[int]:
    """Token ids from ``3,5,7`` or from a JSON list in ``@FILE``.

    Raises:
        UsageFault: neither.
    """
    import json

    try:
        if text.startswith("@"):
            found = json.loads(Path(text[1:]).read_text(encoding="utf-8"))
            if not isinstance(found, list) or not all(type(x) is int for x in found):
                raise ValueError("expected a JSON list of whole numbers")
            return found
        return [int(part) for part in text.replace(" ", "").split(",") if part]
    except (OSError, ValueError) as error:
        raise UsageFault(f"--prompt-ids {text[:60]!r}: {error}") from error
