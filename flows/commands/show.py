"""`evalhouse runs`, `show` and `report`: the list of runs, one run, and a run or a series as an HTML file."""

import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import click

from evalhouse.flows.commands.options import (
    BY_OPTION,
    JSON_OPTION,
    LATEST_ARGUMENT,
    WAREHOUSE_OPTION,
    count_option,
    refuse_database,
)
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.results.baseline import describe_acceptance
from evalhouse.flows.results.comparison import (
    corrected_table,
    describe_preferences,
    lay_out_jury,
    print_components,
    print_preferences,
    read_noise_components,
)
from evalhouse.flows.results.output import (
    print_fitting,
    print_json,
    print_line,
    print_notice,
    print_scores,
    print_section,
    print_table,
    write_cost,
    write_count,
    write_shared,
)
from evalhouse.flows.results.run_facts import (
    FIRST,
    SilentMetrics,
    describe_dropped,
    describe_languages,
    describe_replies,
    describe_strange,
    explain_joint_split,
    explain_sampling,
    find_other_run,
    list_folded,
    list_notes,
    list_trail,
    list_troubled,
    print_responses,
    print_slices,
    read_replies,
    read_response_counts,
    read_silent,
    read_slices,
    sort_first,
)
from evalhouse.flows.run.outcome import write_next
from evalhouse.tasks.comparing import POWER
from evalhouse.tasks.reviews.export import CorrectedMean, list_corrected
from evalhouse.warehouse.messages import clean_text, shorten, suggest
from evalhouse.warehouse.rows.gates import list_acceptances
from evalhouse.warehouse.rows.pages import fetch_series, find_series, has_room_for_calls, reading_slices
from evalhouse.warehouse.rows.runs import RunKind, RunRow, find_forgotten, find_run, list_runs
from evalhouse.warehouse.rows.samples import load_turns, plain_turns
from evalhouse.warehouse.store import Warehouse

_KEPT = ("run", "label", "dataset", "status", "#samples")
_MEANS = "select run_id, metric, mean from run_scores where run_id in (select unnest($run_ids))"
Means = dict[str, dict[str, float | None]]  # by run and metric


@click.command()
@count_option("--limit", default=20, min_value=1, text="Newest runs to list.")
@click.option("--all", "of_all_kinds", is_flag=True, help="Also runs for other purposes: noise, prompts, benchmark.")
@click.option(
    "--problems",
    is_flag=True,
    help="Only runs that went wrong, with the reason: not completed, their gate failed, their notification was not "
    "delivered.",
)
@WAREHOUSE_OPTION
@JSON_OPTION
def runs(*, limit: int, of_all_kinds: bool, problems: bool, warehouse: Warehouse, as_json: bool) -> None:
    """List the newest runs with the means of their main metrics."""
    kinds: tuple[RunKind, ...] | None = None if of_all_kinds else ("evaluation", "collection")
    newest = list_runs(warehouse, limit=None if problems else limit, kinds=kinds)
    if problems:
        went_wrong = ("failed", "incomplete", "cancelled")
        newest = [run for run in newest if run.status in went_wrong or run.gate == "failed" or run.notify_problem]
        newest = newest[:limit]
    means: Means = {run.run_id: {} for run in newest}
    for row in warehouse.read_rows(_MEANS, {"run_ids": list(means)}):
        means[str(row["run_id"])][str(row["metric"])] = row["mean"]  # type: ignore[assignment]  # a mean is a number
    if as_json:
        print_json([_describe_run(run) | {"metrics": means[run.run_id]} for run in newest])
        return
    if problems:
        for run in newest:
            print_line(f"{run.run_id}  {run.suite_name or run.dataset}  {_list_problems(warehouse, run)}")
        if not newest:
            print_line(f"No run in {warehouse.location.name} went wrong.")
        return
    if not newest:
        print_line(f"No run in {warehouse.location.name} yet; start one with `evalhouse run sample`.")
        return
    metrics = [metric for metric in FIRST if any(metric in of_run for of_run in means.values())]
    rows: list[dict[str, object]] = [
        {
            "run": run.run_id,
            "label": shorten(run.label, 40) or None,
            "variant": run.variant,
            "dataset": shorten(run.dataset, 40),
            "status": run.status,
            "#samples": run.n_samples,
            **{f"#{metric}": means[run.run_id].get(metric) for metric in metrics[:1]},
            "kind": run.kind,
            "judge": run.judge,
            **{f"#{metric}": means[run.run_id].get(metric) for metric in metrics[1:]},
        }
        for run in newest
    ]
    hidden = tuple(column for column in ("label", "variant") if not any(getattr(run, column) for run in newest))
    if all(run.kind == "evaluation" for run in newest):
        hidden = (*hidden, "kind")
    shown = [{column: value for column, value in row.items() if column not in hidden} for row in rows]
    print_fitting(shown, [(column,) for column in reversed(shown[0]) if column not in _KEPT])


def _list_problems(warehouse: Warehouse, run: RunRow) -> str:
    """Return what went wrong with a run, and what to type next."""
    reasons = [run.status if run.problem is None else f"{run.status}: {shorten(run.problem, 300)}"]
    if run.gate == "failed":
        from evalhouse.flows.serving.notify import describe_failures  # noqa: PLC0415  # most listings do without

        checks = describe_failures(warehouse.fetch_rows("gate/failures", run_id=run.run_id))
        reasons.append(f"gate failed: {checks}" if checks else "gate failed")
    if run.notify_problem is not None:
        reasons.append(f"the notification was not delivered: {run.notify_problem}")
    reasons.append(f"evalhouse show {run.run_id}" if run.status == "completed" else write_next(run, with_reason=False))
    return "; ".join(reasons)


@click.command()
@LATEST_ARGUMENT
@count_option("--worst", default=5, text="Worst samples to show.")
@click.option("--all", "show_all", is_flag=True, help="Show every metric, not only the main ones.")
@click.option("--sort", metavar="METRIC", help="The metric that says which samples are worst.")
@BY_OPTION
@click.option(
    "--drop",
    "drops",
    multiple=True,
    metavar="METRIC=NUMBER",
    help="For a run that repeated questions: print what it takes to see a drop of that size. Repeatable. Default: the "
    "drops of the run's own gate.",
)
@click.option(
    "--power",
    type=click.FloatRange(0.5, 0.999),
    default=POWER,
    show_default=True,
    help="The probability of seeing it.",
)
@WAREHOUSE_OPTION
@JSON_OPTION
def show(
    *,
    run: str,
    worst: int,
    show_all: bool,
    sort: str | None,
    by: str | None,
    drops: tuple[str, ...],
    power: float,
    warehouse: Warehouse,
    as_json: bool,
) -> None:
    """Show RUN: its scores with the change since the run before, worst samples, costs, and what is unscored and why.

    RUN is a run id, a unique prefix of one, a label, `latest` (the default), `latest-completed` or `previous`.
    """
    run_row = find_run(warehouse, run)
    components = read_noise_components(warehouse, run_row, drops=drops, power=power)
    of_run = {"run_id": run_row.run_id}
    scores = warehouse.fetch_rows("show/scores", **of_run)
    scored = {row["metric"] for row in scores if row["n_scored"]}
    if sort is not None and sort not in {row["metric"] for row in scores}:
        advice = suggest(sort, sorted(map(str, scored)), otherwise="it has")
        raise SettingsError(f"run {run_row.run_id} has no metric {sort!r}; {advice}")
    corrected = list_corrected(warehouse, run_row.run_id)
    metric = sort or next((name for name in (*FIRST, *run_row.metrics) if name in scored), None)
    of_metric = {**of_run, "metric": metric, "worst": worst}
    noise = warehouse.fetch_rows("show/noise", **of_run)
    replies = read_replies(warehouse, run_row.run_id)
    shifts: list[str] = []
    if any(row["n_changed"] for row in noise):
        # The statistics, which most runs do not need.
        from evalhouse.tasks.comparing.noise import describe_shifts, find_shifts  # noqa: PLC0415

        run_ids = list(dict.fromkeys(str(row["noise_run_id"]) for row in noise))
        shifts = describe_shifts(find_shifts(warehouse.fetch("noise/differences", {"run_id": run_ids}), run_ids))
    jury: list[dict[str, Any]] = []
    outsiders: list[str] = []
    if run_row.has_jury:
        from evalhouse.tasks.comparing.agreement import list_outsiders, measure_jury  # noqa: PLC0415  # few runs have one

        measured = measure_jury(warehouse, run_row)
        jury, outsiders = [asdict(step) for step in measured], list_outsiders(measured)
    document = {
        "run": _describe_run(run_row),
        "metrics": scores,
        "worst_by": metric,
        "worst": [
            {**row, "conversation": plain_turns(load_turns(cast("str | None", row["conversation"]))) or None}
            for row in (warehouse.fetch_rows("show/worst", **of_metric) if metric else ())
        ],
        "changes": warehouse.fetch_rows("runs/changes", **of_run),
        "responses": read_response_counts(warehouse, run_row),
        "costs": warehouse.fetch_rows("runs/costs", **of_run),
        "replies": replies,
        "votes": warehouse.fetch_rows("runs/votes", **of_run) if run_row.takes_votes else [],
        "jury": jury,
        "noise": noise,
        "warnings": [
            *describe_languages(warehouse, run_row.run_id),
            *describe_replies(replies),
            *describe_strange(warehouse, run_row.run_id),
            *describe_dropped(warehouse, run_row.run_id),
            *shifts,
            *outsiders,
        ],
        "corrected": [asdict(row) for row in corrected],
        "sampling": explain_sampling(warehouse, run_row),
        "notes": list_notes(warehouse, run_row),
        "forgotten": forgotten.words if (forgotten := find_forgotten(warehouse, run_row.run_id)) else None,
        "acceptances": [asdict(row) for row in list_acceptances(warehouse, run_row.run_id)],
        "unscored": warehouse.fetch_rows("runs/unscored", **of_run),
        "preferences": describe_preferences(warehouse, run_row),
    } | {"components": components, "by": read_slices(warehouse, run_row, by)}
    if as_json:
        print_json(document)
    else:
        _print_run(run_row, document, read_silent(warehouse, run_row), worst=worst, show_all=show_all)


def _describe_run(run: RunRow) -> dict[str, object]:
    names = (
        "run_id", "kind", "status", "problem", "label", "href", "tags", "dataset", "dataset_hash", "judge",
        "embeddings", "language", "suite", "variant", "night", "suite_hash", "code_version", "trigger", "kb_name",
        "kb_version", "kb_changed", "parent_run_id", "gate", "notify_problem", "n_samples", "started_at", "finished_at",
        "flow_run_id",
    )  # fmt: skip
    return {name: getattr(run, name) for name in names} | {"testset": run.config.get("refreshed")}


def _print_run(run: RunRow, document: dict[str, Any], silent: SilentMetrics, *, worst: int, show_all: bool) -> None:
    if run.kind == "collection":
        tools = "its application was asked, and nothing was judged"
    else:
        tools = f"judge {run.judge}, embeddings {run.embeddings or '–'}, prompts in {run.language}"
    print_line(
        f"run {run.run_id} {run.status}: {write_count(run.n_samples, 'sample')} of {run.dataset}; {tools}",
        bold=True,
    )
    taken = f", took {(run.finished_at - run.started_at).total_seconds():.1f} s" if run.finished_at else ""
    print_line(f"started {run.started_at:%Y-%m-%d %H:%M:%S} UTC{taken}")
    if document["forgotten"]:
        print_line(document["forgotten"])
    for line in [*list_trail(run), *map(describe_acceptance, document["acceptances"])]:
        print_line(line)
    print_responses(document["responses"])
    if document["metrics"]:
        print_line()
        folded = [] if show_all else list_folded(run, document["metrics"], silent.hidden)
        print_scores(document["metrics"], sort_first(run.metrics), silent.hidden, silent.line, folded)
        for note in filter(None, (*document["notes"], document["sampling"])):
            print_line(note)
        print_slices(document["by"])
        # The groups that intervals count, if they do not count single samples.
        grouped = {row["cluster"]: row for row in sorted(document["metrics"], key=lambda row: row["n_clusters"] or 0)}
        for cluster, row in grouped.items():
            if cluster is not None:
                grouped_by = f"intervals count groups of samples by {cluster}, up to {row['n_clusters']} a metric"
                without = f"; {row['n_without_cluster']:,} samples without one count singly"
                print_line(f"{grouped_by}, and not single samples{without if row['n_without_cluster'] else ''}")
        rows = [
            [
                row["metric"],
                f"{row['change']:+.3f}",
                row["previous_run_id"],
                write_shared(row)
                if row["same_yardstick"]
                else "other judge, language, plan or formula: not comparable",
            ]
            for row in document["metrics"]
            if row["change"] not in (None, 0) and row["metric"] not in folded
        ]
        print_section("Changes", ["metric", "#change", "since run", ""], rows)
    elif document["preferences"]:
        print_line()
        print_preferences(document["preferences"], top=worst)
    elif run.kind != "collection":
        print_line()
        print_line("No scores yet.")
    if document["corrected"]:
        print_line()
        print_table(corrected_table([CorrectedMean(**row) for row in document["corrected"]]))
    if document["changes"]:
        names = ["change", "n_samples", "n_asked_anew", "n_requests", "n_reused"]
        columns = ["", "#samples", "#judged again", "#requests sent", "#answered from the record"]
        title = f"Samples since run {document['changes'][0]['previous_run_id']}"
        print_section(title, columns, [[row[name] for name in names] for row in document["changes"]])
    rows = []
    for row in document["worst"]:
        asked = [str(turn["text"]) for turn in row["conversation"] or () if turn["role"] == "user"]
        before = f"{shorten(asked[-1], 30)} › " if asked else ""
        question = before + shorten(row["question"], 60)
        rows.append([row["sample_id"], row["value"], question, shorten(row["answer"], 80)])
    print_section(f"Worst by {document['worst_by']}", ["sample", "#value", "question", "answer"], rows)
    rows = [
        [
            row["step"], row["n_requests"], row["n_reused"], row["n_failed"], row["prompt_tokens"],
            row.get("cached_tokens"), row["completion_tokens"], write_cost(row),
        ]
        for row in document["costs"]
    ]  # fmt: skip
    columns = ["step", "#requests", "#reused", "#failed", "#tokens in", "#cached", "#tokens out", "#cost"]
    print_section("Calls", columns, rows)
    if note := explain_joint_split(document["costs"]):
        print_line(note)
    names = ["step", "n_replies", "n_complete", "n_incomplete", "n_unusable", "n_copied", "n_late", "n_repaired"]
    columns = ["step", "#replies", "#complete", "#incomplete", "#unusable", "#copied", "#too late", "#repaired", "of"]
    troubled = list_troubled(document["replies"])
    rows = [[*(row[name] for name in names), ", ".join(row["repairs"])] for row in troubled]
    print_section("Replies that were not all usable at once", columns, rows)
    names = ["step", "n_items", "n_flipped", "flip_rate", "n_votes", "n_against", "against_rate"]
    columns = ["step", "#judged", "#flipped", "#flip rate", "#votes", "#against", "#share against"]
    print_section("Votes", columns, [[row[name] for name in names] for row in document["votes"]])
    for title, (columns, rows) in lay_out_jury(document["jury"]).items():
        print_section(title, columns, rows)
    names = ["metric", "n_samples", "n_changed", "mean_difference", "sd_difference"]
    columns = ["metric", "#judged twice", "#otherwise", "#mean difference", "#deviation"]
    rows = [[row[name] for name in names] for row in document["noise"] if row["n_changed"]]
    print_section("The judge against itself", columns, rows)
    print_components(document["components"])
    for warning in document["warnings"]:
        print_line(f"warning: {warning}")
    rows = [
        [row["reason"], row["n_samples"], ", ".join(row["metrics"]), shorten(row["example"], 200)]
        for row in document["unscored"]
    ]
    columns = ["reason", "#samples", "metrics", "example"]
    n_columns = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    print_section("Unscored", columns[:n_columns], [row[:n_columns] for row in rows])
    print_line()
    if run.status != "completed":
        print_line(f"next: {write_next(run)}")
    elif run.kind == "collection":
        print_line(f"next: evalhouse run SUITE.toml --responses {run.run_id}   (judges these responses)")
    if document["worst"]:
        # The id is from the dataset; a shell must read it as one word.
        sample = shlex.quote(clean_text(document["worst"][0]["sample_id"]))
        print_line(f"next: evalhouse lineage {run.run_id} {sample} {document['worst_by']}")


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--against", metavar="RUN", help="Another run to show beside it.")
@click.option(
    "--history", metavar="SUITE", help="Instead of a run: all runs of a suite, or of a dataset outside suites."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=refuse_database,
    help="Where to write. Default: report-RUN.html, history-SUITE.html.",
)
@click.option("--no-calls", is_flag=True, help="Leave the raw requests and replies out: a smaller file.")
@BY_OPTION
@WAREHOUSE_OPTION
def report(
    *,
    run: str | None,
    against: str | None,
    history: str | None,
    output: str | None,
    no_calls: bool,
    by: str | None,
    warehouse: Warehouse,
) -> None:
    """Write RUN as one HTML file that needs no network: scores, distributions, history, costs, and every sample with
    its verdicts.

    RUN is a run id, a unique prefix of one, a label, `latest` (the default), `latest-completed` or `previous`.
    """
    if run and history:
        raise click.UsageError("name one RUN, such as `latest`, or a suite with --history")
    if history is not None and (against or no_calls or by):
        raise click.UsageError("--against, --no-calls and --by are for a RUN, and --history shows none")
    if history is not None:
        from evalhouse.flows.report.page import build_history  # noqa: PLC0415  # a run needs none of it

        series, others = find_series(warehouse, history)
        if series is None:
            raise SettingsError(
                f"no run of suite {history!r} has scores, nor of a dataset of that name outside suites; "
                f"{suggest(history, others)}"
            )
        data = fetch_series(warehouse, series)
        name = re.sub(r"[^\w.-]+", "-", history)
        path, what = Path(output or f"history-{name}.html"), write_count(len(data.runs), "run")
        size = path.write_bytes(build_history(warehouse, data).encode())
    else:
        run_row = find_run(warehouse, (run or "latest"))
        with_calls = not no_calls and has_room_for_calls(warehouse, run_row)
        if not (with_calls or no_calls):
            print_notice(
                "note: the raw calls would make the report too large for a browser and are left out; "
                "`evalhouse lineage` and `evalhouse ui` show them"
            )
        base = find_other_run(warehouse, run_row, against) if against else None
        read_slices(warehouse, run_row, by)  # refuses a column before the samples are read
        with reading_slices(warehouse, run_row, base, with_calls=with_calls) as slices:
            from evalhouse.flows.report.page import write_page  # noqa: PLC0415  # while samples are read

            path, what = Path(output or f"report-{run_row.run_id}.html"), write_count(run_row.n_samples or 0, "sample")
            size = write_page(path, warehouse, run_row, base, slices, with_calls=with_calls, by=by)
    print_line(f"wrote {path}: {size / 1e6:.1f} MB, {what}; open it in any browser")
