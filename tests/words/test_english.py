"""Plain English: words that engineers would not use are not in docstrings, comments, names, messages, SQL and guides.

`python tests/words/test_english.py` prints every hit. `EXCEPTIONS` lists the lines that a file may have.
"""

import re
from collections.abc import Iterator
from pathlib import Path

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
# The look at one letter first makes it four times as fast.
WORDS = re.compile(
    rf"(?<![A-Za-z])(?=[a-z])(?:{'|'.join(f'(?:{pattern})' for pattern in BANNED)})(?![A-Za-z])", re.IGNORECASE
)
# Docstrings begin with a verb or a noun.
OPENING = re.compile(
    r'^[ \t]*r?"""(?:What|Whether|How|Those|Who|Where|That|Which|When|Of|In|As|From|With|By|For|If|So|Has|Is|Are|Does)'
    r"\b",
    re.MULTILINE,
)
# Files that are data, not our words: judge prompts but for their comments, samples, planted texts of tests.
DATA = (
    "warehouse/sample_data/", "tasks/lexical/words.yaml", "tests/helpers/port/", "tests/benchmarks/attacks.yaml",
    "tests/words/test_english.py",
)  # fmt: skip
PROMPTS = re.compile(r"prompts/(?:.*/)?[a-z_0-9]+\.yaml")
# Lines that a file may have, by path and pattern.
EXCEPTIONS = {
    # The column `said` and keys of JSON documents in the product, and Jinja's `is none`.
    "flows/commands/compare.py": r"n_anew",
    "flows/commands/explain.py": r'row\["said"\]',
    "flows/commands/show.py": r"n_asked_anew",
    "flows/commands/warehouse.py": r'"under_way"',
    "flows/guides/commands.md": r'"under_way"|"said_at"',
    "flows/guides/diagnose.md": r"`nowhere`|say so when they hold nothing",
    "flows/guides/tables.md": r"\bsaid\b",
    "flows/report/assets/sample.js": r"measure\.said",
    "flows/report/samples.py": r'"said"',
    "flows/trials/endpoint.py": r"said_at",
    "flows/ui/assets/cookbook.sql": r"\bsaid\b",
    "flows/ui/assets/document.html": r"is none",
    "flows/ui/assets/sql_result.html": r"is none",
    "tasks/grade.py": r"said=None",
    "tasks/models/serving.py": r"said_at",
    "tasks/pipeline/live_run.py": r"said=grade\.said",
    "tasks/similarity.py": r"said=",
    # The column `said`, stored values of earlier versions, and values that users read.
    "warehouse/migrations/0001_schema.sql": r"\bsaid\b",
    "warehouse/queries/report/slice_measures.sql": r"verdicts\.said",
    "warehouse/queries/runs/changes.sql": r"asked anew|n_asked_anew",
    "warehouse/queries/stored/causes.sql": r"nowhere|'said in T'",
    "warehouse/views/cause_rules.sql": r"'nowhere'",
    "warehouse/views/corrected_scores.sql": r"share \* said",
    "warehouse/views/corrected_verdicts.sql": r"\bsaid\b",
    "warehouse/views/sample_changes.sql": r"asked anew",
    "warehouse/views/score_lineage.sql": r"\.said\b",
    "warehouse/views/verdicts.sql": r"\bsaid\b",
    "warehouse/steps.toml": r"^said = |says? so",  # a column, and the meanings of labels
    "tests/words/test_prompts_hostile.py": r"all you were told before|It says so itself",  # texts of attacks
    "tests/words/test_chinese.py": r"where said is not null",  # a column of the table `grades`
    "prompts/rubric.py": r"\bsaid\b",  # the same
    # In tests the columns and fields `said` and `said_at`, and the columns `n_anew` and `n_asked_anew`.
    "tests/asking/test_logprobs.py": r'\.said\b|\["said"\]',
    "tests/comparing/test_corrected_scores.py": r'row\["said"\]',
    "tests/helpers/history_nights.py": r"\bsaid\b|stands as table|' tells\.'|says so|has to be told|is told"
    r"|how the water stands",  # and texts of samples
    "tests/models/test_served_models.py": r"\bsaid_at=",
    "tests/steps/test_grading.py": r'\["said"\]',
    "tests/steps/test_result_sets.py": r'\.said\b|\["said"\]',
    "tests/commands/test_cli_compare.py": r'"n_anew"',
    "tests/comparing/test_compare_tables.py": r'"n_anew"',
    "tests/runs/test_noise_runs.py": r'"n_anew"',
    "tests/targets/test_collect.py": r"asked anew|n_asked_anew|lighthouse stands",  # and a text of a document
    # The rule `nowhere`, the value `asked anew`, and product texts that tests quote.
    "tests/formulas/test_views_causes.py": r'"nowhere"|; said in T',
    "tests/formulas/test_views_earlier_support.py": r'"nowhere"',
    "tests/targets/test_collect_record.py": r'"asked anew"',
    "tests/formulas/test_lineage_grades.py": r', said |\["said"\]',
    "tests/ui/test_pair.py": r"no context says so",
    # Texts of samples and of judges, and a user of the system.
    "tests/asking/test_usage.py": r"says the same in other",
    "tests/formulas/test_cookbook.py": r'"Nobody knows\."|row\["said"\]',
    "tests/helpers/collect_house.py": r"lighthouse stands",
    "tests/helpers/endpoint_replies.py": r"You said: ",
    "tests/helpers/pair_house.py": r"no context says so",
    "tests/helpers/postgres_server.py": r'"nobody"',
    "tests/helpers/review_rows.py": r"Nobody keeps",
    "tests/lexical/test_lexical_judge.py": r"tall, stands by|context says so, score",
    "tests/lexical/test_lexical_split.py": r"as soon as it is handed in",
    "tests/lexical/test_lexical_text.py": r"Nobody agreed",
    "tests/reviews/test_review_page.py": r"Nobody keeps",
}


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


def collect_hits() -> list[str]:
    """Return the hits of all files of the product and its tests."""
    paths = [ROOT / "README.md"]
    for folder in ("flows", "tasks", "prompts", "warehouse", "tests"):
        paths += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return [hit for name in names if not name.startswith(DATA) for hit in find_hits(name)]


def test_no_banned_word_is_used() -> None:
    hits = collect_hits()
    assert not hits, "\n".join([*hits[:60], "words to use instead are in BANNED"])


if __name__ == "__main__":
    print("\n".join(collect_hits()))
