"""What a gate leaves for other programs: JUnit XML for a CI's test page, Markdown for a pull request.

Names of metrics, labels and datasets are texts of others. In XML they are attributes and texts, without the characters
that XML 1.0 does not allow; in Markdown they stand in code spans, where no markup, mention or HTML is read.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from evalhouse.flows.display.output import clean_text, write_dollars, write_interval, write_number

Document = Mapping[str, Any]

KINDS = {
    "min": "mean at least",
    "max": "mean at most",
    "max_drop": "drop at most",
    "min_coverage": "coverage at least",
    "max_cost": "cost at most",
}
# XML 1.0, production [2] Char: no controls but tab and line breaks, no surrogates, no U+FFFE and U+FFFF.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKS = {"failed": "❌ failed", "undecided": "❔ undecided", "passed": "✅ passed"}


def write_amount(kind: str, value: float | None) -> str:
    """What was found, in its unit."""
    if value is None:
        return "–"
    match kind:
        case "max_cost":
            return write_dollars(value)
        case "min_coverage":
            return f"{value:.2%}"
        case _:
            return write_number(value)


def write_limit(kind: str, value: float) -> str:
    """A limit in its unit, with all digits it was given."""
    match kind:
        case "max_cost":
            return f"${value:.2f}" if round(value, 2) == value else f"${value:.12g}"
        case "min_coverage":
            return f"{100 * value:.12g}%"
        case _:
            return write_number(value) if round(value, 3) == value else f"{value:.12g}"


def write_beyond(check: Document) -> str:
    """By how much a value is beyond its limit; a dash where it is not."""
    beyond = check["beyond"]
    if beyond is None or beyond <= 0:
        return "–"
    return write_amount(check["kind"], beyond)


def has_floors(document: Document) -> bool:
    """Whether a table of the checks needs a column for noise floors: only drops have them."""
    return any(check["kind"] == "max_drop" for check in document["checks"])


def write_floor(check: Document) -> str:
    """The noise floor of a drop; a dash where none is known, and for checks that have none."""
    floor = check["noise_floor"]
    return "–" if floor is None else write_number(floor)


def name_check(check: Document) -> str:
    """A check in a few words, such as `factual_f1: mean at least 0.800`."""
    limit = f"{KINDS[check['kind']]} {write_limit(check['kind'], check['limit'])}"
    return f"{check['metric']}: {limit}" if check["metric"] else limit


def describe_finding(check: Document) -> str:
    """What was found, in one sentence."""
    told = "undecided, " if check["outcome"] == "undecided" else ""
    found = f"{told}found {write_amount(check['kind'], check['value'])}"
    if check["ci_low"] is not None:
        found += f" ({write_interval(check['ci_low'], check['ci_high'])})"
    if check["noise_floor"]:
        found += f", noise floor {write_number(check['noise_floor'])}"
    beyond = write_beyond(check)
    return f"{found}{'' if beyond == '–' else f', beyond the limit by {beyond}'}: {check['detail']}"


def describe_verdict(document: Document) -> str:
    """The whole gate in one sentence."""
    counts = document["counts"]
    undecided = f"{counts['undecided']} undecided"
    if counts["undecided"]:
        undecided += f" (which {'passes' if document['undecided'] == 'pass' else 'fails'})"
    return f"gate {document['outcome']}: {counts['failed']} failed, {undecided}, {counts['passed']} passed"


def write_junit(document: Document) -> bytes:
    """JUnit XML: one test case a check. Failed is a failure; undecided is one too where it fails, else skipped."""
    checks: Sequence[Document] = document["checks"]
    endings = [_find_ending(document, check) for check in checks]
    counts = {"tests": str(len(checks)), "failures": str(endings.count("failure")), "errors": "0", "time": "0"}
    suites = ElementTree.Element("testsuites", {"name": "evalhouse gate", **counts})
    started = document["run"]["started_at"]
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        {
            "name": _clean_xml(_name_suite(document)),
            **counts,
            # Schemas in use (Jenkins' junit-10.xsd) have it here and not at the root.
            "skipped": str(endings.count("skipped")),
            "timestamp": f"{started:%Y-%m-%dT%H:%M:%S}",
        },
    )
    properties = ElementTree.SubElement(suite, "properties")
    for side in ("run", "against"):
        for name, value in (document[side] or {}).items():
            attributes = {"name": f"{side}.{name}", "value": _clean_xml("" if value is None else str(value))}
            ElementTree.SubElement(properties, "property", attributes)
    for check, ending in zip(checks, endings, strict=True):
        names = {"classname": f"evalhouse.gate.{check['kind']}", "name": _clean_xml(name_check(check)), "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", names)
        told = _clean_xml(describe_finding(check))
        if ending == "passed":
            ElementTree.SubElement(case, "system-out").text = told
            continue
        attributes = {"message": told, "type": check["reason"]} if ending == "failure" else {"message": told}
        ElementTree.SubElement(case, ending, attributes).text = told
    ElementTree.indent(suites)
    written: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _find_ending(document: Document, check: Document) -> str:
    if check["outcome"] == "passed":
        return "passed"
    return "failure" if check["outcome"] == "failed" or document["undecided"] == "fail" else "skipped"


def _name_suite(document: Document) -> str:
    run = document["run"]
    return f"evalhouse gate {run['suite'] or run['label'] or run['run_id']}"


def _clean_xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", clean_text(text))


def write_markdown(document: Document) -> str:
    """A summary for a pull request: the verdict, the runs, warnings, and a table of all checks."""
    mark = "✅" if document["outcome"] == "passed" else "❌"
    lines = [f"### {mark} evalhouse {describe_verdict(document)}", ""]
    lines += [f"- {side}: {_describe_run(document[key])}" for side, key in _SIDES if document[key]]
    lines += [f"- ⚠️ {_quote(warning)}" for warning in document["warnings"]]
    floor, ruled = ("noise floor | ", "--:|") if has_floors(document) else ("", "")
    lines += ["", f"| outcome | metric | check | limit | found | 95 % interval | {floor}n | beyond limit by | why |"]
    lines.append(f"|---|---|---|--:|--:|---|{ruled}--:|--:|---|")
    lines += [_write_row(check, with_floor=bool(floor)) for check in document["checks"]]
    return "\n".join(lines) + "\n"


_SIDES = (("run", "run"), ("against", "against"))


def _write_row(check: Document, *, with_floor: bool) -> str:
    cells = (
        _MARKS[check["outcome"]],
        # A bar ends a table's cell even in a code span.
        _quote(check["metric"]).replace("|", r"\|"),
        KINDS[check["kind"]],
        write_limit(check["kind"], check["limit"]),
        write_amount(check["kind"], check["value"]),
        write_interval(check["ci_low"], check["ci_high"]),
        *([write_floor(check)] if with_floor else []),
        "–" if check["n"] is None else str(check["n"]),
        write_beyond(check),
        check["detail"],
    )
    return f"| {' | '.join(cells)} |"


def _describe_run(run: Document) -> str:
    label = f" ({_quote(run['label'])})" if run["label"] else ""
    return (
        f"{_quote(run['run_id'])}{label}, {run['n_samples']} samples of {_quote(run['dataset'])}, "
        f"judge {_quote(run['judge'])}"
    )


def _quote(text: str | None) -> str:
    """A code span on one line, with a fence that is longer than any within."""
    flat = " ".join(clean_text(text or "").split())
    if not flat:
        return "–"
    fence = "`" * (max((len(run) for run in re.findall(r"`+", flat)), default=0) + 1)
    padding = " " if "`" in (flat[0], flat[-1]) else ""
    return f"{fence}{padding}{flat}{padding}{fence}"
