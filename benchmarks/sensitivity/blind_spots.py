"""How often one wrong entry of the target's KV cache changes nothing: counted in the independent forward pass.

    python -m benchmarks.sensitivity.blind_spots [--preset tiny] [--victims 64] [--write]

One token's entry is replaced by another token's, in one layer alone (each layer in turn) or in all layers alike, at
places that every distance reaches. Unseen is a replacement that changes no next token of the whole sequence.
``--write`` puts the table into docs/explanation/synthetic_pair.md.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.page import put
from tokgate.models.checkup import prompt_of
from tokgate.models.forward import Model, load_model, target_pass
from tokgate.models.maker import make
from tokgate.models.truth import load_truth

DOCUMENT = Path(__file__).parents[2] / "docs" / "explanation" / "synthetic_pair.md"
BEGIN, END = "<!-- blind spots: begin -->", "<!-- blind spots: end -->"
F32 = NDArray[np.float32]


def choices(
    model: Model, ids: list[int], layers: range, victim: int = -1, other: int = -1
) -> NDArray[np.int64]:
    """Next tokens at every place, with the victim's entries taken from the other in these layers."""

    def replace(layer: int, keys: F32, values: F32) -> None:
        if victim >= 0 and layer in layers:
            values[victim] = values[other]

    found: NDArray[np.int64] = model.logits(target_pass(model, ids, kv_fault=replace).final).argmax(axis=1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny", help="a small one: every trial is a forward pass")
    parser.add_argument(
        "--victims", type=int, default=64, help="replaced entries, for each layer and for all"
    )
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(options.preset, Path(folder) / "pair")
        truth = load_truth(Path(folder) / "pair")
        model = load_model(Path(folder) / "pair" / "target", rounded=False)
        layers = truth.rule.preset.layers
        longest = max(truth.distances)
        prompt = prompt_of(truth.rule, 40)
        ids = [*prompt, *truth.rule.continuation(prompt, longest + 21)]
        right = choices(model, ids, range(0))
        draw = random.Random(20261129)
        # Every distance lands on these from within the sequence.
        pairs = [(draw.randrange(5, 60), draw.randrange(5, 60)) for _ in range(options.victims)]
        pairs = [(a, b if b != a else b + 1) for a, b in pairs]

        def unseen(struck: range) -> int:
            return sum(bool((choices(model, ids, struck, a, b) == right).all()) for a, b in pairs)

        alone = [unseen(range(layer, layer + 1)) for layer in range(layers)]
        alike = unseen(range(layers))
    count = len(pairs)
    lines = [
        f"`{options.preset}`, {count} replaced entries each:",
        "",
        "| replaced in | unseen | share |",
        "|---|---:|---:|",
        *(f"| layer {layer} alone | {n} of {count} | {n / count:.0%} |" for layer, n in enumerate(alone)),
        f"| one layer alone, mean | {sum(alone)} of {count * layers} | {sum(alone) / count / layers:.1%} |",
        f"| all layers alike | {alike} of {count} | {alike / count:.1%} |",
    ]
    text = "\n".join(lines)
    print(text)
    if options.write:
        put(DOCUMENT, BEGIN, END, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
