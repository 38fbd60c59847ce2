"""`evalhouse lineage` and `evalhouse diagnose`: why a score is what it is, and which stage of the application fails.

`lineage` draws a score down to the raw replies. Its rows are from the view `score_lineage`, with the steps that no
metric file names: the splitting of texts into statements, and the grades of users' rubrics, which have no such file.
"""

import shlex
from collections.abc import Collection, Mapping
from itertools import groupby, zip_longest
from typing import Any, Final, cast

import click
import orjson
from rich.text import Text
from rich.tree import Tree

from evalhouse.flows.commands.options import JSON_OPTION, LATEST_ARGUMENT, WAREHOUSE_OPTION, count_option
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.results.output import (
    explain_support,
    make_console,
    make_table,
    name_support,
    print_fitting,
    print_json,
    print_line,
    print_section,
    print_table,
    write_count,
    write_interval,
    write_json,
    write_value,
)
from evalhouse.flows.results.run_facts import CAUSES, LANGUAGES, Cause, Language, read_diagnosis
from evalhouse.flows.run.outcome import write_next
from evalhouse.warehouse.messages import clean_text, shorten, suggest
from evalhouse.warehouse.rows.calls import fetch_rubric_templates
from evalhouse.warehouse.rows.pages import explain_no_sample
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.rows.samples import find_owners, load_turns
from evalhouse.warehouse.steps import GRADE_STEP, STEPS, add_earlier
from evalhouse.warehouse.store import Warehouse

_MOST_NAMES = 3
_METRICS = "select distinct metric from scores where run_id = $run_id order by metric"
_SHORT = 300
_ABOUT_SCORE = (
    "run_id", "sample_id", "metric", "value", "unscored_reason", "metric_version", "question", "answer", "ground_truth",
    "contexts", "conversation",
)  # fmt: skip
_SPLITTINGS = tuple(name for name, step in STEPS.items() if step.task == "extract")

Row = Mapping[str, Any]
_GOOD: Final = ("refused_rightly", "fine")
_LAST: Final = (*_GOOD, "not_judged")  # in this order, after the failures
_SHOWN_STATEMENTS: Final = 2


@click.command()
@click.argument("names", metavar="[RUN] SAMPLE [METRIC]", nargs=-1, required=True)
@click.option("--full", is_flag=True, help="Show requests as well, and every text whole.")
@WAREHOUSE_OPTION
@JSON_OPTION
def lineage(*, names: tuple[str, ...], full: bool, warehouse: Warehouse, as_json: bool) -> None:
    """Walk from a score of SAMPLE in RUN to its verdicts, the calls they came from, the prompts and the sample.

    RUN is a run id, a unique prefix of one, a label, `latest`, `latest-completed` or `previous`. A single name is a
    SAMPLE of the latest run. Without METRIC all of the sample's scores are shown.
    """
    if len(names) > _MOST_NAMES:
        raise click.UsageError(f"got {len(names)} names; write [RUN] SAMPLE [METRIC]")
    run, sample, *metrics = names if len(names) > 1 else ("latest", *names)
    metric = metrics[0] if metrics else None
    run_row = find_run(warehouse, run)
    rows = _fetch_lineage(warehouse, run_row.run_id, sample, metric)
    if not rows:
        of_run = {"run_id": run_row.run_id}
        of_sample = "select 1 from run_samples where run_id = $run_id and sample_id = $sample_id"
        if not warehouse.read_rows(of_sample, {**of_run, "sample_id": sample}):
            raise SettingsError(explain_no_sample(warehouse, run_row, sample))
        scored = [str(row["metric"]) for row in warehouse.read_rows(_METRICS, of_run)]
        if not scored:
            raise SettingsError(
                f"run {run_row.run_id} has no scores yet; `evalhouse resume {run_row.run_id}` continues it"
            )
        advice = suggest(metric or "", scored, otherwise="its metrics")
        raise SettingsError(f"run {run_row.run_id} has no score of metric {metric!r} for {sample!r}; {advice}")
    # The ids and the other columns in the sample's row of the dataset; a forgotten sample has none.
    stored = next(iter(warehouse.fetch_rows("lineage/sample", run_id=run_row.run_id, sample_id=sample)), {})
    metadata: Mapping[str, Any] = orjson.loads(str(stored["metadata"])) if stored.get("metadata") else {}
    if as_json:
        print_json([{**row, **stored, "metadata": metadata} for row in rows])
    else:
        # The steps in the order in which they run.
        order = {step: place for place, step in enumerate(STEPS)}
        step_names = {row["step"] for row in rows if row["step"] is not None}
        steps = sorted(step_names, key=lambda step: (order.get(step, len(order)), step))
        read = {}
        if metadata:
            from evalhouse.tasks.comparing.changes import list_step_inputs  # noqa: PLC0415  # brings the prompts

            # The part of a sample's metadata that the steps read; rubrics read what their prompts name.
            templates = fetch_rubric_templates(warehouse, run_row.run_id)
            rubrics = {f"{GRADE_STEP}{rubric}": [template] for rubric, template in templates.items()}
            inputs = [name for step in steps for name in sorted(list_step_inputs(step, rubrics) or ())]
            read = {name: metadata[name] for name in dict.fromkeys(inputs) if name in metadata}
        # The sample, its scores, and the verdicts of each step once, however many scores rest on them.
        first = rows[0]
        tree = Tree(_join((first["sample_id"], "bold"), f" in run {run_row.run_id} ({run_row.dataset})"))
        branch = tree.add("sample")
        for place, turn in enumerate(load_turns(first["conversation"]), start=1):
            branch.add(_join(f"T{place} {turn.role}: {_cut(turn.text, full)}"))
        for name in ("question", "answer", "ground_truth"):
            branch.add(_join(f"{name}: {_cut(first[name], full)}"))
            if name == "answer" and stored.get("thoughts"):
                branch.add(_join(f"thoughts, left out of the answer: {_cut(stored['thoughts'], full)}"))
        ids, matches = stored.get("context_ids") or [], stored.get("matches") or []
        for place, (text, id, match) in enumerate(zip_longest(first["contexts"] or [], ids, matches), start=1):
            wanted = f", matches {match}" if match else ""
            branch.add(_join(f"C{place}{f' {id}{wanted}' if id else ''}: {_cut(text, full)}"))
        for id, owners in find_owners(stored.get("reference_context_ids") or []).items():
            ranks = ", ".join(f"C{place}" for place, match in enumerate(matches, start=1) if match in owners)
            branch.add(_join(f"reference id {id}: {f'retrieved as {ranks}' if ranks else 'not retrieved'}"))
        for name, value in read.items():
            text = value if isinstance(value, str) else write_json(value, indent=False)
            branch.add(_join(f"{name}: {_cut(text, full)}"))
        for _, grouped in groupby(rows, key=lambda row: row["metric"]):
            of_metric = list(grouped)
            score = of_metric[0]
            value = f"unscored: {score['unscored_reason']}"
            if score["value"] is not None:
                value = write_value(score["value"])
            elif score["step"] is None and score["step_detail"]:
                value += f": {score['step_detail']}"
            named = [row["step"] for row in of_metric if row["step"] and row["step"] not in _SPLITTINGS]
            source = f"from {', '.join(dict.fromkeys(named))}; " if named else ""
            version = score["metric_version"]
            tree.add(_join((score["metric"], "bold"), f" = {value}  ({source}formula version {version})"))
        for step in steps:
            metric = next(row["metric"] for row in rows if row["step"] == step)
            verdicts = [row for row in rows if (row["step"], row["metric"]) == (step, metric)]
            first = verdicts[0]
            why = " ".join(filter(None, (first["step_reason"], first["step_detail"])))
            branch = tree.add(_join((step, "bold"), f": {why}" if why else ""))
            reason = None
            for verdict in verdicts:
                # A measure without a judge has one reason for all its numbers.
                is_repeated = (
                    verdict["call_id"] is None and verdict["rating"] is not None and verdict["reason"] == reason
                )
                shown_reason = None if is_repeated else explain_support(verdict, verdict["reason"])
                line = _describe_verdict(verdict, reason=shown_reason)
                reason = verdict["reason"]
                if line is not None:
                    branch.add(line)
            first_rows: dict[str, dict[str, Any]] = {}
            for row in verdicts:
                first_rows.setdefault(row["call_id"], row)
            for call_id, row in first_rows.items():
                if call_id is None:
                    continue
                reused = "" if row["original_call_id"] == call_id else f", reused from run {row['original_run_id']}"
                by_batch = f", by batch {row['batch_id'][:8]}" if row["batch_id"] else ""
                call = branch.add(_join(f"call {call_id[:8]}: {row['model']} {row['call_status']}{by_batch}{reused}"))
                if row["prompt"]:
                    language = f" {row['prompt_language']}" if row["prompt_language"] else ""
                    prompt = (
                        f"prompt {row['prompt']} version {row['prompt_version']}{language} ({row['prompt_hash'][:8]})"
                    )
                    call.add(_join(prompt))
                if full:
                    call.add(_join(f"request: {row['request'] or '–'}"))
                if row["thoughts"]:
                    call.add(_join(f"thoughts: {_cut(row['thoughts'], full)}"))
                repair = f" (read after repair: {row['reply_repair']})" if row["reply_repair"] else ""
                call.add(_join(f"reply{repair}: {_cut(row['reply'], full)}"))
        make_console().print(tree)


def _describe_verdict(row: Row, *, reason: str | None) -> Text | None:
    why = f"  — {reason}" if reason else ""
    if row["similarity"] is not None:
        # A cosine, with the text that was compared where the judge wrote it; a text overlap under its name.
        kind = "cosine" if row["step"] in ("similarity", "relevancy") else row["criterion"]
        return _join(
            f"{kind} ", (write_value(row["similarity"]), "bold"), f"  {row['statement']}" if row["statement"] else ""
        )
    if row["rating"] is not None:
        # The rating on its scale, and if the judge gave another one, that and the rule.
        original = "" if row["said"] in (None, row["rating"]) else f", said {row['said']:g}"
        return _join(
            f"{row['criterion']} ",
            (
                f"{row['rating']:g} of {row['scale_max']:g}{original}" + (f" ({row['rule']})" if row["rule"] else ""),
                "bold",
            ),
            why,
        )
    if row["step"] == "citations":
        named = "nothing that was retrieved" if row["context_rank"] is None else f"C{row['context_rank']}"
        of = f"[{row['statement_id']}] " if row["statement_id"] else ""
        return _join(of, (f"cites {named} ", "bold"), row["statement"]) if row["statement"] else None
    if row["statement_id"] is not None:
        verdict = row["label"]
        if verdict is None and row["supported"] is not None:
            verdict = f"supported by {name_support(row)}" if row["supported"] else "unsupported"
        return _join(
            f"[{row['statement_id']}] ", (f"{verdict} " if verdict else "", "bold"), row["statement"] or "", why
        )
    if row["context_rank"] is not None and row["useful"] is not None:
        return _join(f"C{row['context_rank']} ", ("useful" if row["useful"] else "not useful", "bold"), why)
    return _join((row["label"], "bold"), why) if row["label"] is not None else None


def _join(*parts: str | tuple[str, str]) -> Text:
    """Join texts, some with a style, into one without control characters."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((clean_text(text), style) for text, style in pairs))


def _cut(text: str | None, full: bool) -> str:
    return (text or "–") if full else shorten(text or "–", _SHORT)


def _fetch_lineage(warehouse: Warehouse, run_id: str, sample_id: str, metric: str | None) -> list[dict[str, Any]]:
    """Fetch all rows behind one score of a sample, or behind all of its scores, with the columns of `score_lineage`.

    The list is empty for a missing score.
    """
    sample = {"run_id": run_id, "sample_id": sample_id}
    rows: list[dict[str, Any]] = warehouse.fetch_rows("lineage/scores", **sample, metric=metric)
    has_own = any(row["step"] is None for row in rows)
    own: Mapping[str, Collection[str]] = {}
    if has_own:
        from evalhouse.tasks.comparing.changes import find_graded  # noqa: PLC0415  # only where there are rubrics

        # The grading step of each score that a rubric gave whose prompt is stored.
        templates = fetch_rubric_templates(warehouse, run_id)
        own = find_graded({f"{GRADE_STEP}{name}": [template] for name, template in templates.items()})
    # The rows come in the order of their metrics. Each metric also rests on the splittings before its steps.
    scores = {name: list(of_metric) for name, of_metric in groupby(rows, key=lambda row: str(row["metric"]))}
    steps_of = {}
    for name, of_metric in scores.items():
        earlier = add_earlier(row["step"] for row in of_metric if row["step"] is not None)
        steps_of[name] = [*(step for step in _SPLITTINGS if step in earlier), *own.get(name, ())]
    steps = sorted({step for names in steps_of.values() for step in names})
    further = warehouse.fetch_rows("lineage/further", **sample, steps=steps) if steps else []
    all_rows: list[dict[str, Any]] = []
    for name, of_metric in scores.items():
        about_score = dict.fromkeys(of_metric[0]) | {column: of_metric[0][column] for column in _ABOUT_SCORE}
        added = [
            about_score | {column: value for column, value in row.items() if column in about_score}
            for row in further
            if row["step"] in steps_of[name]
        ]
        # The grades of a rubric replace the only row of its score, which has no step.
        is_graded = any(step not in _SPLITTINGS for step in steps_of[name])
        all_rows += [*(() if is_graded and added else of_metric), *added]
    return all_rows


@click.command()
@LATEST_ARGUMENT
@click.option("--cause", type=click.Choice(CAUSES), metavar="NAME", help="Show this cause alone.")
@count_option("--limit", default=3, text="Worst samples to show of each cause.")
@count_option("--runs", "n_runs", default=5, min_value=1, text="Runs of the same suite or dataset in the trend.")
@click.option(
    "--language", type=click.Choice(LANGUAGES), help="Language of causes and remedies. Default: that of the run."
)
@WAREHOUSE_OPTION
@JSON_OPTION
def diagnose(
    *, run: str, cause: str | None, limit: int, n_runs: int, language: str | None, warehouse: Warehouse, as_json: bool
) -> None:
    """Show which stage fails in RUN, for which samples, and what to try.

    Each sample gets one cause from the stored verdicts; no model is asked. RUN is a run id, a unique prefix of one,
    a label, `latest` (the default), `latest-completed` or `previous`.
    """
    run_row = find_run(warehouse, run)
    chosen = language or (run_row.language if run_row.language in LANGUAGES else "en")
    shown = CAUSES if cause is None else (cast(Cause, cause),)
    document = read_diagnosis(
        warehouse, run_row, language=cast(Language, chosen), causes=shown, n_samples=limit, n_runs=n_runs
    )
    if as_json:
        print_json(document)
    else:
        n_samples = write_count(run_row.n_samples, "sample")
        print_line(
            f"run {run_row.run_id} {run_row.status}: {n_samples} of {run_row.dataset}; judge {run_row.judge}", bold=True
        )
        if document["sampling"]:
            print_line(document["sampling"])
        print_line()
        names = {row["cause"]: row["name"] for row in document["causes"]}
        # The most frequent failure first; causes that are fine or were not judged last.
        order = {name: place for place, name in enumerate(_LAST, start=1)}
        causes = sorted(document["causes"], key=lambda row: (order.get(row["cause"], 0), -row["n_samples"]))
        rows = [
            [row["name"], row["n_samples"], row["share"], write_interval(row["ci_low"], row["ci_high"]), row["meaning"]]
            for row in causes
            if row["n_samples"] or row["cause"] == cause
        ]
        if not rows:
            print_line("No samples yet.")
        else:
            print_table(make_table(["cause", "#samples", "#share", "95 % interval", "meaning"], rows))
            for row in document["not_judged"]:
                # A run that has completed was not stopped before anything.
                is_unasked = row["reason"] == "cancelled" and document["run"]["status"] == "completed"
                why = " (no metric of this run asks for these verdicts)" if is_unasked else ""
                print_line(f"{names['not_judged']}: {row['n_samples']} {row['reason']}{why}")
        trend = document["trend"]
        rows = [
            [row["name"], *(of_run["shares"].get(row["cause"]) for of_run in trend)]
            for row in causes
            if any(of_run["shares"].get(row["cause"]) for of_run in trend)
        ]
        if len(trend) > 1 and rows:
            minutes = {f"{of_run['started_at']:%m-%d %H:%M}" for of_run in trend}
            form = "%m-%d %H:%M" if len(minutes) == len(trend) else "%m-%d %H:%M:%S"
            days = [f"{of_run['started_at']:{form}}" for of_run in trend]
            table = make_table(["share", *(f"#{day}" for day in days)], rows, title="Trend")
            print_line()
            if table.width <= make_console().width:
                print_table(table)
            else:
                # A row for each run, with the causes that fit: first by the largest share in any run.
                last = [names.get(name) for name in _LAST]
                rows.sort(key=lambda cells: (cells[0] in last, -max(share or 0.0 for share in cells[1:])))
                by_run = [
                    {"run": day, **{f"#{cells[0]}": cells[place] for cells in rows}}
                    for place, day in enumerate(days, start=1)
                ]
                print_fitting(by_run, [(column,) for column in [*by_run[0]][:1:-1]], title="Trend")
            for of_run in trend:
                if of_run["same_yardstick"] is False:
                    what = "another judge, language or plan"
                    print_line(f"run {of_run['run_id']} has {what} than the one before: not comparable")
        rows = [
            [
                names[row["cause"]],
                row["sample_id"],
                row["evidence"],
                " / ".join(shorten(statement["text"], 60) for statement in row["statements"][:_SHOWN_STATEMENTS])
                or None,
                shorten(row["question"], 60),
                shorten(row["answer"], 80) or None,
            ]
            for row in document["samples"]
            if row["cause"] not in _GOOD or cause
        ]
        print_section("Samples", ["cause", "sample", "evidence", "statements", "question", "answer"], rows)
        with_remedies = [row for row in causes if row["remedies"]]
        if with_remedies:
            print_line()
            print_line("What to try", bold=True)
            for row in with_remedies:
                print_line(f"{row['name']} ({row['n_samples']})")
                for remedy in row["remedies"]:
                    print_line(f"  - {remedy}")
        frequent = next((row for row in causes if row["n_samples"] and row["cause"] not in _LAST), None)
        print_line()
        if run_row.status != "completed":
            print_line(f"next: {write_next(run_row)}")
        if frequent is not None:
            sample = next((row["sample_id"] for row in document["samples"] if row["cause"] == frequent["cause"]), None)
            if sample is not None:
                # The id is from the dataset; a shell must read it as one word.
                print_line(f"next: evalhouse lineage {run_row.run_id} {shlex.quote(clean_text(sample))}")
            if cause is None:
                print_line(f"next: evalhouse diagnose {run_row.run_id} --cause {frequent['cause']} --limit 20")
