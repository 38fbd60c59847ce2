"""Plain English: words that engineers would not use are not in docstrings, comments, names, messages, SQL and guides.

A top folder has at most as many hits as `LIMITS` allows, and a limit may only fall; the rooms of `CLEAN` have none.
`python tests/words/test_english.py` prints every hit, the present counts, and the rooms without one.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".sql", ".md", ".html", ".yaml", ".toml", ".js", ".css"}

# Each pattern with the words to use in its place.
BANNED = {
    r"told|tells|telling|tell of": "reported, printed, logged, stated",
    r"said|unsaid|says so|says the same|say so": "reported, stated, the reply, the verdict",
    r"whoever|whatever|whomever|whichever|whosoever": "the caller, any X, every X",
    r"nobody|nobodys|somebody|somebodys": "no person, no process, a person, another process",
    r"one'?s own|(?:of|by|on|for)[ _](?:its|their|his|ones)[ _]own|of ours": "separate, your own, a user's, built in",
    r"(?<!here )(?:is|are|was|were|be) no(?! longer| more| less| fewer|t\b)|(?:is|are)_no_(?!longer|more)"
    r"|(?:is|are|was|were|as) (?-i:none)": "is not a valid X, is missing, without X",
    r"be had|(?:came|come|comes)[ _]of": "available, the result of",
    r"anew|mend|mends|mended|mending|unmended|bear|bears|bore|borne|bearing": "again, fix, support",
    r"those (?:that|who|which|whom|of|with|in|it|they)|that which": "the ones that, X that, repeat the noun",
    r"stands|stand in|stand there|stood": "is, is in, is stored",
    r"(?:go|goes|going|went)[ _]on": "resumes, continues",
    r"under[ _]way|lies still|lie still": "is running, is idle",
    r"wants": "requires, needs, expects",
    r"hitherto|thereof|therein|thereby|wherein|whereof|heretofore|henceforth|nowhere|holds? against|held against":
    "until now, in it, by it, compared with",
    r"(?:is|are) another|another than|otherwise than": "differs, other than",
    r"as it is|as they are|as it stands": "unchanged",
    r"all the same|at all events|in vain|time and again|by and by|put away|(?:puts?|is|are) on record|on its record"
    r"|takes? in hand": "still, without result, stored, store",
}  # fmt: skip
WORDS = re.compile("|".join(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])" for pattern in BANNED), re.IGNORECASE)
# Docstrings begin with a verb or a noun.
OPENING = re.compile(
    r'^[ \t]*r?"""(?:What|Whether|How|Those|Who|Where|That|Which|When|Of|In|As|From|With|By|For|If|So|Has|Is|Are|Does)'
    r"\b",
    re.MULTILINE,
)
# Files that are data, not our words: judge prompts but for their comments, samples, planted texts of tests.
DATA = ("warehouse/sample_data/", "tests/helpers/port/", "tests/benchmarks/attacks.yaml", "tests/words/test_english.py")
PROMPTS = re.compile(r"prompts/(?:.*/)?[a-z_0-9]+\.yaml")
# Lines that a file may have, by path and pattern.
EXCEPTIONS = {
    # The column `said`, stored values of earlier versions, and values that users read.
    "warehouse/migrations/0001_schema.sql": r"\bsaid\b",
    "warehouse/queries/report/slice_measures.sql": r"verdicts\.said",
    "warehouse/queries/runs/changes.sql": r"asked anew|n_asked_anew",
    "warehouse/queries/stored/causes.sql": r"nowhere|'said in T'",
    "warehouse/queries/testsets/decisions.sql": r"mended",
    "warehouse/queries/ui/testsets.sql": r"'mended'",
    "warehouse/views/cause_rules.sql": r"'nowhere'",
    "warehouse/views/corrected_scores.sql": r"share \* said",
    "warehouse/views/corrected_verdicts.sql": r"\bsaid\b",
    "warehouse/views/question_reviews.sql": r"mended",
    "warehouse/views/sample_changes.sql": r"asked anew",
    "warehouse/views/score_lineage.sql": r"\.said\b",
    "warehouse/views/verdicts.sql": r"\bsaid\b",
    "warehouse/steps.toml": r"^said = |says? so",  # a column, and the meanings of labels
    "tasks/testsets/questions.py": r"mended",  # a stored value of earlier versions
    "tasks/testsets/decisions.py": r'"mend": "fix"',  # a label of earlier versions
    "tests/testsets/test_review_questions.py": r"mend",  # the same
    "tests/words/test_prompts_hostile.py": r"all you were told before|It says so itself",  # texts of attacks
    "tests/words/test_chinese.py": r"where said is not null",  # a column of the table `grades`
    "prompts/rubric.py": r"\bsaid\b",  # the same
    # In tests the columns and fields `said` and `said_at`, and the columns `n_anew` and `n_asked_anew`.
    "tests/asking/test_logprobs.py": r"\.said\b",
    "tests/comparing/test_corrected_scores.py": r'row\["said"\]',
    "tests/helpers/history_nights.py": r"\bsaid\b|stands as table|' tells\.'|says so|has to be told|is told"
    r"|how the water stands",  # and texts of samples
    "tests/models/test_served_models.py": r"\bsaid_at=",
    "tests/steps/test_grading.py": r'\["said"\]',
    "tests/steps/test_logprobs_calls.py": r'\["said"\]',
    "tests/steps/test_rubrics.py": r"\.said\b",
    "tests/steps/test_sql_results.py": r'\.said\b|\["said"\]',
    "tests/commands/test_cli_compare.py": r'"n_anew"',
    "tests/comparing/test_compare_tables.py": r'"n_anew"',
    "tests/runs/test_noise_runs.py": r'"n_anew"',
    "tests/targets/test_collect.py": r"asked anew|n_asked_anew|lighthouse stands",  # and a text of a document
    # The rule `nowhere`, the value `asked anew`, and product texts that tests quote.
    "tests/formulas/test_views_causes.py": r'"nowhere"|; said in T',
    "tests/formulas/test_views_causes_random.py": r'"nowhere"',
    "tests/formulas/test_views_earlier_support.py": r'"nowhere"',
    "tests/targets/test_collect_changes.py": r'"asked anew"',
    "tests/formulas/test_lineage_grades.py": r', said |\["said"\]',
    "tests/ui/test_pair.py": r"no context says so|There are none\.",
    "tests/ui/test_analyst.py": r"no context says so",
    # Texts of samples and of judges, and a user of the system.
    "tests/asking/test_usage.py": r"says the same in other",
    "tests/formulas/test_cookbook.py": r'"Nobody knows\."|row\["said"\]',
    "tests/helpers/collect_house.py": r"lighthouse stands",
    "tests/helpers/cookbook_house.py": r"is another one|All is said|stands in C1|Nobody knows",
    "tests/helpers/endpoint_replies.py": r"You said: ",
    "tests/helpers/pair_house.py": r"no context says so",
    "tests/helpers/postgres_server.py": r'"nobody"',
    "tests/helpers/review_rows.py": r"Nobody keeps",
    "tests/lexical/test_lexical_judge.py": r"tall, stands by|context says so, score",
    "tests/lexical/test_lexical_split.py": r"as soon as it is handed in",
    "tests/lexical/test_lexical_text.py": r"Nobody agreed",
    "tests/reviews/test_review_page.py": r"Nobody keeps",
}
# The number of hits in each top folder; a limit may only fall. Rooms of `CLEAN` have none.
LIMITS: dict[str, int] = {"README.md": 2, "flows": 90, "tasks": 28}
CLEAN: tuple[str, ...] = (
    "flows/preparing",
    "flows/results",
    "flows/run",
    "flows/server",
    "flows/serving",
    "flows/testsets",
    "prompts",
    "tasks/asking",
    "tasks/comparing",
    "tasks/datasets",
    "tasks/judge",
    "tasks/measures",
    "tasks/reviews",
    "tasks/settings",
    "tasks/targets",
    "tasks/testsets",
    "tasks/trials",
    "tests",
    "tests/asking",
    "tests/benchmarks",
    "tests/commands",
    "tests/comparing",
    "tests/datasets",
    "tests/formulas",
    "tests/helpers",
    "tests/lexical",
    "tests/machines",
    "tests/models",
    "tests/report",
    "tests/reviews",
    "tests/runs",
    "tests/steps",
    "tests/store",
    "tests/suites",
    "tests/targets",
    "tests/testsets",
    "tests/traces",
    "tests/trials",
    "tests/ui",
    "tests/words",
    "warehouse",
    "warehouse/engine",
    "warehouse/metrics",
    "warehouse/migrations",
    "warehouse/queries",
    "warehouse/rows",
    "warehouse/sandbox",
    "warehouse/upkeep",
    "warehouse/views",
)


def name_room(path: str) -> str:
    """Return the room of a file: a folder of a top folder, or the top folder or file itself."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 and parts[0] != "prompts" else parts[0]


def find_hits(path: str) -> Iterator[str]:
    """Yield `path:line: word` for every banned word and docstring opening of a file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.split("\n")
    exception = EXCEPTIONS.get(path)
    patterns = (WORDS, OPENING) if path.endswith(".py") else (WORDS,)
    for match in (match for pattern in patterns for match in pattern.finditer(text)):
        number = text.count("\n", 0, match.start()) + 1
        line = lines[number - 1]
        is_text_of_prompt = PROMPTS.fullmatch(path) and not line.startswith("#")
        if not is_text_of_prompt and not (exception and re.search(exception, line)):
            yield f"{path}:{number}: {match[0].strip()}"


@cache
def collect_hits() -> dict[str, list[str]]:
    """Return the hits of each room."""
    by_room: dict[str, list[str]] = {}
    paths = [ROOT / "README.md"]
    for folder in ("flows", "tasks", "prompts", "warehouse", "tests"):
        paths += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    for name in (path.relative_to(ROOT).as_posix() for path in paths):
        if not name.startswith(DATA):
            by_room.setdefault(name_room(name), []).extend(find_hits(name))
    return by_room


def count_by_folder() -> Counter[str]:
    return Counter(room.split("/")[0] for room, hits in collect_hits().items() for _ in hits)


def test_folders_have_no_more_banned_words_than_allowed() -> None:
    over = {folder: n for folder, n in count_by_folder().items() if n > LIMITS.get(folder, 0)}
    shown = [hit for room, hits in collect_hits().items() if room.split("/")[0] in over for hit in hits]
    assert not over, "\n".join([*shown[:60], f"allowed are {LIMITS}; words to use instead are in BANNED"])


@pytest.mark.parametrize("room", CLEAN)
def test_clean_rooms_stay_clean(room: str) -> None:
    assert collect_hits().get(room, []) == []


@pytest.mark.parametrize(
    ("text", "n_hits"),
    [
        ('"""Whether it is open."""', 1),
        ("def test_nobody_is_asked() -> None:", 1),
        ("-- what is told of the run", 1),
        ("The result is not a number; it is no longer stored.", 0),
        ("This is no error.", 1),
        ("goes_on, go on", 2),
        ("telling_words and a teller", 1),
    ],
)
def test_words_are_found_in_names_and_sentences(text: str, n_hits: int) -> None:
    assert len(WORDS.findall(text)) + len(OPENING.findall(text)) == n_hits


if __name__ == "__main__":
    print("\n".join(hit for hits in collect_hits().values() for hit in hits))
    print(f"LIMITS = {dict(sorted(count_by_folder().items()))}")
    print(f"CLEAN = {sorted(room for room, hits in collect_hits().items() if not hits)}")
