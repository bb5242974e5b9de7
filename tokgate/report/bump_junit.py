"""A bump as JUnit XML: one case a verdict; line 1 of its message is the failure's."""

from __future__ import annotations

from xml.etree import ElementTree

from tokgate.report.bump_record import BumpReport


def junit(report: BumpReport) -> str:
    """The document. What is undecided or neutral is *skipped*, never passed."""
    failed = [verdict for verdict in report.verdicts if verdict.outcome == "failed"]
    skipped = [verdict for verdict in report.verdicts if verdict.outcome in ("undecided", "neutral")]
    suite = ElementTree.Element(
        "testsuite",
        name=f"tokgate bump {report.old} -> {report.new}",
        tests=str(len(report.verdicts)),
        failures=str(len(failed)),
        errors="0",
        skipped=str(len(skipped)),
        time=f"{60 * report.gpu_minutes:.1f}",
    )
    for verdict in report.verdicts:
        metric = str(verdict.evidence.get("metric", "bump"))
        case = ElementTree.SubElement(suite, "testcase", classname=verdict.subject, name=metric)
        if verdict.outcome == "failed":
            told = ElementTree.SubElement(case, "failure", message=_clean(verdict.line))
            told.text = _clean(verdict.text())
        elif verdict.outcome != "green":
            told = ElementTree.SubElement(case, "skipped", message=_clean(verdict.line))
            told.text = _clean(verdict.text())
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Without the control characters that XML does not know (an engine's log line may hold them)."""
    return "".join(c if c in "\t\n" or ord(c) >= 32 else "?" for c in text)
