"""All runs of all kinds, found, sorted, paged, and two of them chosen to compare; and one run as a whole."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.report.sections import describe_about, describe_run, draw_charts
from evalhouse.flows.results.gate import name_check, write_amount
from evalhouse.flows.results.output import write_json, write_value
from evalhouse.flows.results.run_origin import HEADLINE
from evalhouse.flows.ui.live import describe_live, describe_stands, find_live, make_stamp
from evalhouse.flows.ui.pages import find_flow_run_page, find_warehouse, link, render
from evalhouse.flows.ui.pair import compare_kept
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.gates import read_checks
from evalhouse.warehouse.rows.report import Row, Rows, read_summary
from evalhouse.warehouse.rows.run_pages import find_runs, read_values, read_worst
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.rows.told import read_told
from evalhouse.warehouse.store import Warehouse

router = APIRouter()


@router.get("/runs/{run}")
def show_run(request: Request, run: str) -> Response:
    """One run as a whole; `run` is whatever the commands take for one."""
    warehouse = find_warehouse(request)
    row = find_run(warehouse, run)
    if row.status == "running":
        return _show_running(request, row)
    summary = read_summary(warehouse, row)
    names = [str(metric["metric"]) for metric in summary.metrics]
    worst = read_worst(warehouse, row, [name for name in names if name in HEADLINE] or names)
    return render(
        request,
        "run.html",
        worst=[_describe_worst(sample) for sample in worst],
        charts=draw_charts(read_values(warehouse, row), summary.history, link="/runs/"),
        checks=[_describe_check(check) for check in read_checks(warehouse, row.run_id)],
        settings=_list_settings(row),
        series=row.series,
        prefect=find_flow_run_page(row),
        samples_address=link(f"/runs/{row.run_id}/samples"),
        **describe_run(warehouse, row, None, summary, compare=lambda pair: compare_kept(request, pair).comparison),
    )


def _show_running(request: Request, run: RunRow) -> Response:
    """A run under way: its page fills until there is all that stands on that of a run that has ended."""
    return render(request, "running.html", live=describe_live(find_live(request), run), **describe_about(run))


def _describe_check(check: Row) -> dict[str, Any]:
    return {**check, "name": name_check(check), "found": write_amount(check["kind"], check["value"])}


def _list_settings(run: RunRow) -> list[tuple[str, str]]:
    """What a run was made with, by name; what was left as it is by default has no value of its own."""
    given = {name: value for name, value in sorted(run.config.items()) if value not in (None, "", [], {})}
    versions = {"code_version": run.code_version, "suite_hash": run.suite_hash, "dataset_hash": run.dataset_hash}
    shown = {**given, **{name: value for name, value in versions.items() if value}}
    return [
        (name, value if isinstance(value, str) else write_json(value, indent=False)) for name, value in shown.items()
    ]


def _describe_worst(sample: Row) -> dict[str, Any]:
    """A sample with what is wrong with its statement, in words; the colours are those of labels."""
    if sample["label"] == "FN":
        return {**sample, "tag": "is-fn", "wrong": "left out"}
    if sample["label"] == "FP":
        return {**sample, "tag": "is-fp", "wrong": "wrong" if sample["supported"] else "wrong, and without support"}
    return {**sample, "tag": "is-fp", "wrong": "without support"}


FILTERS: Final = ("kind", "status", "suite", "dataset", "judge", "label", "tag")
_WANTED: Final = (*FILTERS, "series", "words")
SORTS: Final = {
    "started": "started_at", "run": "run_id", "status": "status", "samples": "n_samples", "time": "seconds",
    "judge": "judge", "label": "label",
}  # fmt: skip
_A_PAGE: Final = 50
_MOST_CHOICES: Final = 200


@router.get("/runs")
def show_runs(
    request: Request,
    sort: str = "started",
    ascending: str = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> Response:
    """The runs that the address asks for."""
    wanted = {name: request.query_params.get(name) or None for name in _WANTED}
    _check(request, sort)
    warehouse = find_warehouse(request)
    order = f"{SORTS[sort]} {'asc' if ascending else 'desc'} nulls last, run_id desc"
    rows = find_runs(warehouse, wanted, order=order, start=(page - 1) * _A_PAGE, most=_A_PAGE)
    n_found = int(rows[0]["n_found"]) if rows else 0

    def address(**changes: object) -> str:
        given: dict[str, object] = {**wanted, "sort": sort if sort != "started" else None, "ascending": ascending}
        return link("/runs", **(given | changes))

    return render(
        request,
        "runs.html",
        runs=_add_means(warehouse, rows),
        choices=_read_choices(warehouse),
        wanted=wanted,
        sort=sort,
        ascending=ascending,
        sorts=SORTS,
        address=address,
        n_found=n_found,
        page=page,
        n_pages=max(1, -(-n_found // _A_PAGE)),
        stands=describe_stands(request),
        stamp=make_stamp(warehouse),
    )


def _check(request: Request, sort: str) -> None:
    known = (*_WANTED, "sort", "ascending", "page")
    for name in request.query_params:
        if name not in known:
            raise SettingsError(f"runs cannot be found by {name!r}; {suggest(name, known)}")
    if sort not in SORTS:
        raise SettingsError(f"runs cannot be sorted by {sort!r}; {suggest(sort, list(SORTS))}")


def _add_means(warehouse: Warehouse, rows: Rows) -> Rows:
    """The runs with the mean of their first main metric."""
    means: dict[str, dict[str, Any]] = {}
    for row in read_told(warehouse, "scores", [str(row["run_id"]) for row in rows]).to_dicts():
        means.setdefault(row["run_id"], {})[row["metric"]] = row["mean"]
    for row in rows:
        of_run = means.get(row["run_id"], {})
        name = next((name for name in HEADLINE if of_run.get(name) is not None), None)
        row |= {"metric": name, "mean": write_value(of_run[name]) if name else "–"}
    return rows


def _read_choices(warehouse: Warehouse) -> dict[str, Rows]:
    """By filter the values that runs have, the most frequent first."""
    choices: dict[str, Rows] = {name: [] for name in FILTERS}
    for row in warehouse.read_rows(read_query("ui/run_choices")):
        if len(choices[str(row["name"])]) < _MOST_CHOICES:
            choices[str(row["name"])].append(row)
    return choices
