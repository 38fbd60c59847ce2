"""Metrics and views as files: one `.sql` per metric with a strict header, one `.sql` per view; and the plan of a run.

A user's metric may also be a Python function, marked with `metric`, over the rows of one sample. The mark is read
without running the file, which runs when a run is planned and scored.

The header of a metric file has its name, the version of its formula, the steps it rests on, its parameters, which
direction is better, whether a run that names no metric computes it, whether labels can correct its mean, and a meaning
for a reader who does not know it; its body is one SELECT over the views of `warehouse/views`. This module only reads
text: `warehouse/rows/samples.py` and `warehouse/engine/migrate.py` have the connections that run it.
"""

import ast
import hashlib
import importlib.util
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args

from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import describe_error, name_setting, suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.steps import GRADE_STEP, STEPS, add_earlier

OPTIONAL_STEPS: Final = tuple(step.name for step in STEPS.values() if step.optional)

Better = Literal["high", "low", "neutral"]
SIGNS: Final[Mapping[Better, int]] = {"high": 1, "low": -1, "neutral": 0}
"""The worth of a rise of a metric: of a neutral one neither a rise nor a fall is better."""
"""The direction in which a metric is better."""

Embeddings = Literal["model", "hashing"]
"""The embeddings a metric compares texts by: a model, or hashed n-grams that need no model."""

HEADER_KEYS: Final = (
    "metric", "version", "needs", "parameter", "better", "minimum", "embeddings", "default", "correctable", "meaning",
)  # fmt: skip
_RESERVED: Final = ("run_id", "metric_name", "metric_version")  # kept for warehouse/rows/samples.py
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_VERSION: Final = re.compile(r"[1-9][0-9]*")
_KEY_LINE: Final = re.compile(r"--\s*([A-Za-z_]+):\s+(.*)")
_DEFAULT: Final = re.compile(r"no|yes(?:, place ([1-9][0-9]*))?")
_LAST_PLACE: Final = 1000
_CHOICES: Final = {
    "embeddings": ("model", "hashing"),
    "better": ("high", "low", "neutral"),
    "correctable": ("yes", "no, ratio", "no, joined", "no, ranks"),
}
_PARAMETER: Final = re.compile(r"(\S+)\s*=\s*(\S+)")
_NOT_CODE: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)


class MetricFileError(WarehouseError):
    """A metric file or a metric's setting cannot be used; the text names the file, the value and the allowed ones."""


@dataclass(frozen=True, kw_only=True)
class MetricFile:
    """One metric: `sql` is one SELECT that gives run_id, sample_id, value, unscored_reason for $run_id.

    `minimum` is the lowest possible value. `default_place` is its place among the metrics of a run that names none;
    None where it is not one of them.
    `correctable` is `yes` where labels of a part of its verdicts can correct its mean, or else the obstacle: `ratio`,
    a quotient of counts; `joined`, two verdicts on a statement; `ranks`, all verdicts of a ranking. It is None for a
    metric that rests on no verdict that people review. `embeddings` is the kind that it has a value with; None where
    any kind will do. `meaning` is a phrase for a reader who does not know the formula, None where the file has none;
    `place` is the name of the file in errors; `is_own` is True for a user's file. `function` is the name of the Python
    function in it that takes the place of the SQL, called with `arguments`: columns of a sample and tables of verdicts.
    """

    name: str
    version: str
    needs: tuple[str, ...]
    optional_needs: tuple[str, ...]
    parameters: dict[str, float]
    description: str
    sql: str
    place: str
    function: str | None = None
    arguments: tuple[str, ...] = ()
    embeddings: Embeddings | None = None
    better: Better = "high"
    minimum: float = 0.0
    default_place: int | None = None
    correctable: str | None = None
    meaning: str | None = None
    is_own: bool = True

    @property
    def read_steps(self) -> frozenset[str]:
        """The steps it needs in which our code reads texts: the rows of another version may be read otherwise."""
        return frozenset(name for name in self.needs if name in STEPS and STEPS[name].task == "measure")

    def fits(self, embeddings: str | None) -> bool:
        """Return whether it has a value in a run with these embeddings; None means any."""
        return embeddings is None or self.embeddings in (None, "hashing" if embeddings == "hashing" else "model")


def explain_versions(metric: str) -> str:
    """Return what makes scores of two versions of a metric comparable."""
    known = _load_built_in().get(metric)
    if known is not None and known.read_steps:
        return "a new run over the same data reads its texts by this one"
    return "`evalhouse rescore` brings runs to one"


@dataclass(frozen=True, kw_only=True)
class ViewScript:
    """One view: `sql` makes it, comments on it, and then on its columns."""

    name: str
    sql: str


def load_metrics(folder: Path | None = None) -> dict[str, MetricFile]:
    """Load the built-in metrics and the files of the user's folder, by name in alphabetical order.

    Raises MetricFileError for a missing folder, a file that breaks the rules, or the name of a built-in metric: one
    name must mean one formula wherever a score is read.
    """
    metrics = dict(_load_built_in())
    if folder is None:
        return metrics
    if not folder.is_dir():
        raise MetricFileError(f"no folder of metric files at {folder}; give one that holds <metric>.sql or .py files")
    for path in sorted([*folder.glob("*.sql"), *folder.glob("[!_]*.py")]):
        if path.suffix == ".sql" and path.stem in metrics:
            raise MetricFileError(f"{path}: metric {path.stem!r} is built in; give yours another name")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MetricFileError(f"{path} cannot be read as UTF-8 text: {error}") from None
        if path.suffix == ".sql":
            metrics[path.stem] = parse_metric(text, name=path.stem, place=str(path))
            continue
        for found in parse_functions(text, place=str(path)):
            if found.name in metrics:
                raise MetricFileError(f"{path}: metric {found.name!r} is taken; give yours another name")
            metrics[found.name] = found
    return dict(sorted(metrics.items()))


@cache
def _load_built_in() -> dict[str, MetricFile]:
    rubrics = files("evalhouse.warehouse").joinpath("rubric_metrics.toml").read_text(encoding="utf-8")
    texts = _load_folder("metrics")
    texts |= {name: write_rubric_metric(name, **values) for name, values in tomllib.loads(rubrics).items()}
    return {
        name: parse_metric(text, name=name, place=f"{name}.sql", is_own=False) for name, text in sorted(texts.items())
    }


def parse_metric(text: str, *, name: str, place: str, is_own: bool = True) -> MetricFile:
    """Return the metric in `text`; `name` is the name of its file, and `place` names it in errors."""
    lines = text.splitlines()
    length = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    values, parameters, description = _parse_header(lines[:length], place)
    for key in ("metric", "version", "needs"):
        if key not in values:
            raise MetricFileError(f"{place}: header has no '-- {key}: …' line; needed are metric, version and needs")
    if values["metric"] != name or not _NAME.fullmatch(name):
        raise MetricFileError(
            f"{place}: metric is {values['metric']!r} in the header; it must be the file's name without .sql, "
            "in small letters, digits and underscores, beginning with a letter"
        )
    if not _VERSION.fullmatch(values["version"]):
        raise MetricFileError(f"{place}: version is {values['version']!r}; it must be a whole number from 1")
    if not description:
        raise MetricFileError(f"{place}: header lacks the meaning of a row; add '-- One row per sample of the run: …'")
    for key, allowed in _CHOICES.items():
        if values.get(key, allowed[0]) not in allowed:
            choices = " or ".join(map(repr, allowed))
            raise MetricFileError(f"{place}: {key} is {values[key]!r}; it must be {choices}")
    try:
        minimum = float(values.get("minimum", "0"))
    except ValueError:
        minimum = math.nan
    if not 0 <= minimum < 1:
        raise MetricFileError(f"{place}: minimum is {values['minimum']!r}; it must be a number from 0 to below 1")
    default = _DEFAULT.fullmatch(values.get("default", "no"))
    if default is None:
        raise MetricFileError(
            f"{place}: default is {values['default']!r}; it must be 'no', 'yes' or 'yes, place <number>'"
        )
    sql = "\n".join(lines[length:]).strip().removesuffix(";").rstrip()
    code = _strip(sql)
    if not re.match(r"(with|select|from)\b", code.strip(), re.IGNORECASE) or ";" in code:
        raise MetricFileError(f"{place}: the SQL must be one SELECT (or WITH … SELECT) and nothing after it")
    used = set(re.findall(r"\$(\w+)", code))
    if "run_id" not in used:
        raise MetricFileError(f"{place}: the SQL never uses $run_id; it must read one run only")
    for parameter in sorted(used - parameters.keys() - {"run_id"}):
        raise MetricFileError(f"{place}: the SQL uses ${parameter}; add '-- parameter: {parameter} = <default number>'")
    for parameter in sorted(parameters.keys() - used):
        raise MetricFileError(f"{place}: parameter {parameter!r} is not used in the SQL; use ${parameter} or drop it")
    needs = [need.strip() for need in values["needs"].split(",")]
    embeddings: Embeddings | None = None
    if "embeddings" in values:
        embeddings = "model" if values["embeddings"] == "model" else "hashing"
    return MetricFile(
        name=name,
        version=values["version"],
        needs=_pick_steps([need for need in needs if not need.endswith("?")], tuple(STEPS), needs == ["-"], place),
        optional_needs=_pick_steps([need[:-1] for need in needs if need.endswith("?")], OPTIONAL_STEPS, False, place),
        parameters=parameters,
        description=" ".join(description),
        sql=sql,
        place=place,
        embeddings=embeddings,
        better=next((way for way in SIGNS if way == values.get("better")), "high"),
        minimum=minimum,
        default_place=None if default[0] == "no" else int(default[1] or _LAST_PLACE),
        correctable=values.get("correctable"),
        meaning=values.get("meaning"),
        is_own=is_own,
    )


Function = TypeVar("Function", bound=Callable[..., object])
COLUMNS: Final[Mapping[str, str | None]] = {
    "question": None, "answer": "no_answer", "ground_truth": "no_ground_truth", "contexts": "no_contexts",
    "context_ids": "no_contexts", "reference_context_ids": "no_reference_ids", "conversation": None, "metadata": None,
}  # fmt: skip
"""The columns of a sample that a metric's function can take, each with the reason of a sample that has none."""
_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    table: tuple(step.name for step in STEPS.values() if table in [of_step.name for of_step in step.tables])
    for table in ("statements", "classifications", "attributions", "context_verdicts", "turn_verdicts", "citations")
}


def metric(*, name: str, needs: Sequence[str], better: Better = "high") -> Callable[[Function], Function]:
    """Mark a function as a metric of your own, in a `.py` file of the folder of `--metric-files`.

    It is called for each sample with the named `needs` as keyword arguments: columns of COLUMNS, and tables of verdicts
    as lists of dictionaries. It returns a number, or one of the view unscored_reasons where it has none.
    """
    return lambda function: function


def parse_functions(text: str, *, place: str) -> list[MetricFile]:
    """Return the metrics of a Python file, whose version is the hash of its text; raises MetricFileError."""

    def refuse(line: int, problem: str) -> MetricFileError:
        return MetricFileError(f"{place}, line {line}: {problem}")

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise refuse(getattr(error, "lineno", None) or 1, f"not valid Python: {error}") from None
    found = []
    for function in tree.body:
        marks = [
            mark
            for mark in getattr(function, "decorator_list", ())
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).rpartition(".")[2] == "metric"
        ]
        for mark in marks:
            line = mark.lineno
            if not isinstance(function, ast.FunctionDef):
                raise refuse(line, "@metric marks an ordinary function: no class, and not async")
            try:
                given = {key.arg or "**": ast.literal_eval(key.value) for key in mark.keywords}
            except ValueError:
                raise refuse(line, "name, needs and better of @metric must be written out as literals") from None
            name, needs, better = given.pop("name", None), given.pop("needs", None), given.pop("better", "high")
            if mark.args or given:
                raise refuse(line, "@metric takes the arguments name=, needs= and better=, and no others")
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise refuse(line, f"name is {name!r}; it must be in small letters, digits and underscores")
            arguments = needs if isinstance(needs, tuple | list) else [needs]
            known = (*COLUMNS, *_TABLES, f"{GRADE_STEP}<rubric>")
            for need in arguments:
                is_grade = isinstance(need, str) and need.startswith(GRADE_STEP) and _NAME.fullmatch(need)
                if need not in known and not is_grade:
                    raise refuse(line, f"needs has {need!r}; {suggest(str(need), known)}")
            if better not in get_args(Better):
                raise refuse(line, f"better is {better!r}; it must be one of {', '.join(get_args(Better))}")
            taken = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
            if sorted(taken) != sorted(arguments):
                names = f"({', '.join(taken)}), and needs names {', '.join(arguments)}"
                raise refuse(line, f"{function.name} takes {names}; let the two be the same")
            says = " ".join((ast.get_docstring(function) or "").split())
            # The steps that write a table, or grade by a rubric; none for a column of a sample.
            steps = {step for need in arguments if need not in COLUMNS for step in _TABLES.get(need, (need,))}
            found.append(
                MetricFile(
                    name=name,
                    version=hashlib.sha256(text.encode()).hexdigest()[:12],
                    needs=tuple(sorted(steps)),
                    optional_needs=(),
                    parameters={},
                    description=says or f"The function {function.name} of {place}.",
                    sql="",
                    place=place,
                    function=function.name,
                    arguments=tuple(arguments),
                    better=better,
                )
            )
    if not found:
        raise MetricFileError(f"{place}: no function is marked with @metric; mark one, or name a helper _….py")
    return found


def load_function(metric: MetricFile) -> Callable[..., object]:
    """Run the metric's file in this process and return its function; raises MetricFileError for what that raises."""
    name = f"evalhouse_metrics_{metric.version}"
    spec = importlib.util.spec_from_file_location(name, metric.place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        function: Callable[..., object] = getattr(module, str(metric.function))
    except (Exception, SystemExit) as error:
        raise MetricFileError(f"{metric.place} cannot be loaded: {describe_error(error)}") from error
    return function


def _parse_header(lines: Iterable[str], place: str) -> tuple[dict[str, str], dict[str, float], list[str]]:
    """Return the values of a header by key, its parameters with their defaults, and the lines of its description."""
    values: dict[str, str] = {}
    parameters: dict[str, float] = {}
    description: list[str] = []
    for line in lines:
        key = line.removeprefix("--").strip().removesuffix(":")
        if line.rstrip().endswith(":") and key in HEADER_KEYS and not description:
            none = "; write - for none" if key == "needs" else ""
            raise MetricFileError(f"{place}: header {key!r} is empty{none}")
        match = _KEY_LINE.fullmatch(line.rstrip())
        # Within the description a word before a colon is prose.
        if match is None or (description and match[1] not in HEADER_KEYS):
            description.append(line.removeprefix("--").strip())
        elif match[1] not in HEADER_KEYS:
            raise MetricFileError(f"{place}: unknown header {match[1]!r}; {suggest(match[1], HEADER_KEYS)}")
        elif description:
            raise MetricFileError(f"{place}: header '{match[1]}' comes after the description; put it before")
        elif match[1] == "parameter":
            pair = _PARAMETER.fullmatch(match[2])
            try:
                default = float(pair[2]) if pair else math.nan
            except ValueError:
                default = math.nan
            if pair is None or not _NAME.fullmatch(pair[1]) or not math.isfinite(default):
                raise MetricFileError(f"{place}: parameter is {match[2]!r}; it must be '<name> = <default number>'")
            if pair[1] in parameters or pair[1] in _RESERVED:
                raise MetricFileError(f"{place}: parameter {pair[1]!r} is taken; give it another name")
            parameters[pair[1]] = default
        elif match[1] in values:
            raise MetricFileError(f"{place}: header {match[1]!r} is given twice; keep one")
        else:
            values[match[1]] = match[2]
    return values, parameters, description


def write_rubric_metric(
    metric: str,
    *,
    rubric: str,
    criterion: str,
    better: Better = "high",
    minimum: float = 0.0,
    meaning: str | None = None,
) -> str:
    """Return a metric file for a rubric's criterion or total: its rating as a share of the scale's maximum.

    It is made of `rubric_metrics.toml` for built-in rubrics, and for users' rubrics while a run is planned.
    """
    further = (f"-- better: {better}\n" if better != "high" else "") + (f"-- minimum: {minimum!r}\n" if minimum else "")
    further += f"-- meaning: {meaning}\n" if meaning else ""
    text = read_query("rubric_metric")
    return text.format(metric=metric, rubric=rubric, criterion=criterion, further=further)


def resolve_parameters(metric: MetricFile, settings: Mapping[str, float]) -> dict[str, float]:
    """Return every parameter of the metric with its value: from `settings`, else the file's default.

    Raises MetricFileError for a parameter the metric does not take and for a value that is not a finite number.
    """
    for name, value in settings.items():
        if name not in metric.parameters:
            advice = suggest(name, metric.parameters)
            raise MetricFileError(f"metric {metric.name!r} takes no parameter {name!r}; {advice}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise MetricFileError(f"metric {metric.name!r}: {name} is {value!r}; it must be a finite number")
    return {name: float(settings.get(name, default)) for name, default in metric.parameters.items()}


def metric_version(metric: MetricFile, settings: Mapping[str, float]) -> str:
    """Return the value of `scores.metric_version`: the file's version, then each parameter that is not at its default.

    `settings` holds parameters of this metric alone, so "1" or "1;factual_weight=0.5"; errors as resolve_parameters.
    """
    parts = [metric.version]
    for name, value in sorted(resolve_parameters(metric, settings).items()):
        if value != metric.parameters[name]:
            parts.append(f"{name}={int(value) if value.is_integer() else repr(value)}")
    return ";".join(parts)


@dataclass(frozen=True, kw_only=True)
class SetMetric:
    """A metric with a value for each parameter, and the value of `scores.metric_version` for these."""

    file: MetricFile
    parameters: dict[str, float]
    version: str


def set_metrics(metrics: Iterable[MetricFile], settings: Mapping[str, Mapping[str, float]]) -> list[SetMetric]:
    """Return metrics with the parameters that `settings` has by metric; errors as resolve_parameters."""
    return [
        SetMetric(
            file=metric,
            parameters=resolve_parameters(metric, settings.get(metric.name, {})),
            version=metric_version(metric, settings.get(metric.name, {})),
        )
        for metric in metrics
    ]


@cache
def view_scripts() -> list[ViewScript]:
    """Return all views, each after the views it reads; run them in this order on top of the migrations."""
    metrics = load_metrics()
    texts = _load_folder("views")
    rubrics = sorted({need for metric in metrics.values() for need in metric.needs if need.startswith(GRADE_STEP)})
    steps = ",\n        ".join(f"('{name}')" for name in (*STEPS, *rubrics))
    texts["sample_steps"] = texts["sample_steps"].replace("$steps", steps).replace("$names", ", ".join(STEPS))
    # The view `verdicts` gets a branch, with the columns that it knows, for each table that its text does not name.
    verdicts = texts["verdicts"]
    named = set(_strip(verdicts).split())
    columns = {match[1] for match in re.finditer(r"^comment on column verdicts\.(\w+)", verdicts, re.MULTILINE)}
    tables = {table.name: (step, table) for step in STEPS.values() for table in step.tables}
    branches = [
        f"union all by name\n    select run_id, sample_id, '{step.name}' as step, "
        f"{', '.join(name for name in table.columns if name in columns)}, call_id\n    from {name}"
        for name, (step, table) in tables.items()
        if name not in named and name != "votes"
    ]
    texts["verdicts"] = verdicts.replace("$further", "\n    ".join(branches))
    texts["metric_steps"] = metric_steps_sql(metrics)
    texts["run_costs"] = texts["run_costs"].replace("($costs)", f"(\n{read_stored('costs')})")
    texts["sampled_means"] = fill_in_sampled(texts["sampled_means"])
    components = read_query("repeats/components")
    texts["noise_components"] = texts["noise_components"].replace("($components)", f"(\n{components})")
    texts["score_history"] = texts["score_history"].replace("($shared)", f"(\n{read_query('history/shared')})")
    for name, part in (("earlier_support", "earlier_support"), ("sample_rankings", "id_matches")):
        texts[name] = texts[name].replace(f"${part}", read_query(f"stored/{part}"))
    words = {name: set(re.findall(r"\w+", _strip(text))) for name, text in texts.items()}
    order = TopologicalSorter({name: sorted(words[name] & texts.keys() - {name}) for name in sorted(texts)})
    return [ViewScript(name=name, sql=texts[name]) for name in order.static_order()]


def read_stored(part: str) -> str:
    """Return the SELECT that computes a derived part of the runs in the table `open_runs`."""
    text = read_query(f"stored/{part}").replace("$earlier_support", read_query("stored/earlier_support"))
    return fill_in_sampled(text)


def fill_in_sampled(sql: str) -> str:
    """Return SQL with the queries about runs that judged a part of their dataset in the places that name them."""
    sql = sql.replace("$common_tables", f"\n{read_query('run_pairs/common_tables')}")  # a part of a query
    for name in ("stored/sampled", "stored/sampled_terms", "run_pairs/sampled_picks", "run_pairs/unanswerable"):
        sql = sql.replace(f"(${name.rpartition('/')[2]})", f"(\n{read_query(name)})")
    sql = sql.replace("$unseen_share", f"\n{read_query('stored/unseen_share')}")
    return sql


def metric_steps_sql(metrics: Mapping[str, MetricFile]) -> str:
    """Return the view metric_steps: one row per metric and step it rests on, as the headers of the metric files state.

    A metric that rests on no step has no row.
    """
    rows = [
        f"        ('{metric.name}', '{step}', {str(step in metric.optional_needs).lower()})"
        for metric in metrics.values()
        for step in (*metric.needs, *metric.optional_needs)
    ] or ["        (null, null, null)"]
    return _load_folder("views")["metric_steps"].replace("$rows", ",\n".join(rows))


def _load_folder(folder: str) -> dict[str, str]:
    entries = sorted(files("evalhouse.warehouse").joinpath(folder).iterdir(), key=lambda entry: entry.name)
    return {entry.name[:-4]: entry.read_text(encoding="utf-8") for entry in entries if entry.name.endswith(".sql")}


def _pick_steps(names: list[str], allowed: tuple[str, ...], is_none: bool, place: str) -> tuple[str, ...]:
    if is_none:
        return ()
    for name in names:
        is_grade = allowed != OPTIONAL_STEPS and name.startswith(GRADE_STEP) and _NAME.fullmatch(name)
        if name not in allowed and not is_grade:
            mark = "?" if allowed == OPTIONAL_STEPS else ""
            known = (*STEPS, f"{GRADE_STEP}<rubric>", *(f"{step}?" for step in OPTIONAL_STEPS), "- for none")
            raise MetricFileError(f"{place}: unknown step {name + mark!r} in needs; {suggest(name + mark, known)}")
        if names.count(name) > 1:
            raise MetricFileError(f"{place}: step {name!r} is in needs twice; keep one")
    return tuple(sorted(names, key=lambda name: (allowed.index(name) if name in allowed else len(allowed), name)))


def _strip(sql: str) -> str:
    """Return the SQL without its strings, quoted names and comments."""
    return _NOT_CODE.sub(" ", sql)


class UnknownMetric(Exception):
    """No file defines a metric of that name."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Metrics to score and the steps to take for each sample."""

    metrics: tuple[MetricFile, ...]
    steps: frozenset[str]

    @property
    def own_metrics(self) -> list[MetricFile]:
        """The metrics of the user's files."""
        return [metric for metric in self.metrics if metric.is_own]


def plan_run(wanted: Sequence[str], metrics: dict[str, MetricFile], *, embeddings: str | None = None) -> Plan:
    """Return the plan for some metrics; without any, the default ones and all that need only the same verdicts.

    Raises UnknownMetric with the list of known names, and MetricFileError for a metric without a value in a run with
    these `embeddings` (None where they do not matter).
    """
    unknown = [name for name in wanted if name not in metrics]
    if unknown:
        raise UnknownMetric(f"unknown metric {unknown[0]!r}; {suggest(unknown[0], sorted(metrics))}")
    chosen = [metrics[name] for name in dict.fromkeys(wanted or list_default(metrics))]
    for metric in chosen:
        if metric.fits(embeddings):
            continue
        if metric.embeddings == "hashing":
            hashing = name_setting("embeddings", "hashing")
            raise MetricFileError(
                f"metric {metric.name!r} compares spelling, and embeddings is {embeddings!r}; take {hashing}"
            )
        model = name_setting("embeddings", "openai:MODEL")
        raise MetricFileError(
            f"metric {metric.name!r} compares meaning, and embeddings is {embeddings!r}, which compares spelling; "
            f"name a model with {model}, or take surface_similarity"
        )
    steps = add_earlier([step for metric in chosen for step in metric.needs])
    if not wanted:
        # `steps` includes earlier steps, so that a metric's own needs are enough to compare.
        following = (metric for metric in metrics.values() if steps.issuperset(metric.needs))
        chosen += [metric for metric in following if metric not in chosen and metric.fits(embeddings)]
    return Plan(metrics=tuple(chosen), steps=steps)


def list_default(metrics: Mapping[str, MetricFile]) -> list[str]:
    """Return the metrics of a run that names none, in the order of the places in their files."""
    places = {name: metric.default_place for name, metric in metrics.items() if metric.default_place is not None}
    return sorted(places, key=lambda name: (places[name], name))
