"""What the golden texts are made from; ``python -m tests.report.explained`` records them anew."""

from __future__ import annotations

from pathlib import Path

from tokgate.report.explain_compare import compare, comparison_text
from tokgate.report.explain_model import Explainer
from tokgate.report.explain_record import Explanation
from tokgate.report.explain_text import text
from tokgate.sglang.log_scan import scan, scan_file

SAMPLES = Path(__file__).parents[1] / "sglang" / "samples"
GOLDEN = Path(__file__).parent / "golden"
LOGS = sorted(path.relative_to(SAMPLES).as_posix() for path in SAMPLES.glob("*/*.log"))
PAIRS = [
    ("0.5.13.post1/baseline-graphs.log", "0.5.13.post1/eagle3-graphs.log"),
    (
        "0.5.15.post1/eagle3-graphs-attention-decode.log",
        "0.5.15.post1/baseline-many-ignored-import-errors.log",
    ),
    ("0.5.15.post1/eagle3-eager.log", "0.5.15.post1/eagle3-graphs-attention-decode.log"),
    ("0.5.23-cpu/baseline.log", "0.5.23-cpu/eagle3.log"),
]


def explained(name: str) -> Explanation:
    """The record of one sample."""
    explainer = Explainer(name)
    explainer.take(scan_file(SAMPLES / name))
    return explainer.result()[0]


def explained_bytes(raw: bytes, name: str = "server.log") -> Explanation:
    """The record of a log given as bytes."""
    explainer = Explainer(name)
    explainer.take(scan([raw]))
    return explainer.result()[0]


def golden_texts() -> dict[str, str]:
    """Golden file name -> its text."""
    found = {f"{name.replace('/', '--').removesuffix('.log')}.txt": text(explained(name)) for name in LOGS}
    for one, two in PAIRS:
        name = "--".join(Path(part).stem for part in (one, two))
        found[f"pair-{one.partition('/')[0]}--{name}.txt"] = comparison_text(
            compare(explained(one), explained(two))
        )
    return {name: content + "\n" for name, content in found.items()}


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for golden, content in golden_texts().items():
        (GOLDEN / golden).write_text(content)
        print(golden)
