"""Datasets in the shapes in which people have them: each file as its tool writes it, and what becomes of it, or the
words with which it is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest
from dataset_files import Row, write_json_lines

from evalhouse.tasks.datasets.formats import find_encoding
from evalhouse.tasks.datasets.read import DatasetError, StagedDataset, stage_dataset
from evalhouse.tasks.datasets.rows import ALIASES, suggest_columns

TIDE = "When is high tide at Brankmouth?"
SIX = "High tide is at six."
KEEPER = "Who keeps the light?"
MAUD = "Maud keeps the light."
GERMAN = "Wie groß ist das Gehäuse für Köln?"
CHINESE = "灯塔有多高？请问我们可以在哪里看到？"
QUOTED = ["It's at six.", 'The "pier"\n灯塔 \\ é']
PAIRS = [(TIDE, SIX), (KEEPER, MAUD)]

Write = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A file's name, what writes it, its `samples` by field, and the line that describes its `columns`."""

    name: str
    write: Write
    samples: list[Mapping[str, object]] = field(default_factory=list)
    columns: str = ""
    mapping: Mapping[str, str] = field(default_factory=dict)
    encoding: str | None = None
    message: str = ""


def write_rows(*rows: Row) -> Write:
    return lambda path: write_json_lines(path, rows)


def write_json(document: object) -> Write:
    return lambda path: path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def write_csv(**columns: object) -> Write:
    return lambda path: pl.DataFrame(columns).write_csv(path)


def write_text(text: str, encoding: str) -> Write:
    return lambda path: path.write_bytes(text.encode(encoding))


def write_sheets(**sheets: list[list[object]]) -> Write:
    """A workbook as Excel saves it, with the table a row further down and a column further right than it might be."""

    def write(path: Path) -> None:
        import xlsxwriter  # noqa: PLC0415

        with xlsxwriter.Workbook(path) as workbook:
            for name, rows in sheets.items():
                sheet = workbook.add_worksheet(name)
                for number, row in enumerate(rows, start=1):
                    sheet.write_row(number, 1, row)

    return write


def write_far_note(path: Path) -> None:
    """Write a workbook that would take 550 GB: memory for every cell up to that one."""
    import xlsxwriter  # noqa: PLC0415

    with xlsxwriter.Workbook(path) as workbook:
        sheet = workbook.add_worksheet()
        sheet.write_column(0, 0, ["question", TIDE])
        sheet.write(2**20 - 1, 2**14 - 1, "a note")


def tell(role: str, text: object) -> dict[str, object]:
    return {"role": role, "content": text}


QA = [{"question": question, "ground_truth": truth} for question, truth in PAIRS]
ANSWERED = [{"question": question, "answer": answer} for question, answer in PAIRS]
AMBIGUOUS = (
    "{path}: 'outputs' beside 'inputs' is the reference in a LangSmith dataset and the bot's answer in an export "
    "of its runs, and no other column says which this is (--map ground_truth={place}, or --map answer={place}); "
    "say which it is with --map"
)
OF_LANGSMITH = {"dataset_id": "d", "created_at": "2026-11-01", "modified_at": "2026-11-01"}

CASES = {
    # --- Langfuse
    "langfuse dataset items": Case(
        "items.jsonl",
        write_rows(
            {
                "id": "1", "input": {"messages": [tell("system", "Be brief."), tell("user", TIDE)]},
                "expectedOutput": tell("assistant", SIX), "metadata": {"lang": "en"}},
            {"id": "2", "input": {"question": KEEPER}, "expectedOutput": MAUD, "metadata": None}),
        QA, "columns: question = input, ground_truth = expectedOutput, id; not found: answer, contexts"),
    "langfuse items with their JSON as text": Case(
        "items.jsonl",
        write_rows(
            {"input": json.dumps({"messages": [tell("user", TIDE)]}), "expectedOutput": json.dumps({"answer": SIX})},
            {"input": KEEPER, "expectedOutput": json.dumps([tell("user", KEEPER), tell("assistant", MAUD)])}),
        QA, "columns: question = input, ground_truth = expectedOutput; not found: answer, contexts"),
    "langfuse traces": Case(
        "traces.json",
        write_json(
            [
                {"id": "1", "input": [tell("user", TIDE)], "output": tell("assistant", SIX)},
                {
                    "id": "2", "input": [tell("user", [{"type": "text", "text": KEEPER}])],
                    "output": {"messages": [tell("user", KEEPER), tell("assistant", "…"), tell("ai", MAUD)]}}]),
        ANSWERED, "columns: question = input, answer = output, id; not found: ground_truth, contexts"),
    "a conversation with two questions": Case(
        "turns.jsonl", write_rows({"input": [tell("user", TIDE), tell("assistant", SIX), tell("user", KEEPER)]}),
        [{"question": TIDE, "answer": SIX}, {"question": KEEPER}],
        "2 samples from the turns of 1 conversation in 'input'; columns: question, answer (in 1 of 2 rows), "
        "conversation; not found: ground_truth, contexts; kept as metadata: conversation_id, turn"),
    "an object with two texts": Case(
        "objects.csv", write_csv(input=[json.dumps({"topic": "tides", "town": "Brankmouth"})], output=[SIX]),
        message="question is an object in 'input', not one text: {'topic': 'tides', 'town': 'Brankmouth'}; which "
        "text is it? --map question=input.topic, --map question=input.town, …"),
    # --- LangSmith
    "langsmith dataset csv": Case(
        "dataset.csv",
        write_csv(
            inputs=[json.dumps({"question": TIDE}), json.dumps({"question": KEEPER})],
            outputs=[json.dumps({"answer": SIX}), json.dumps({"answer": MAUD})], split=["base", "base"]),
        QA,
        "columns: question = inputs.question, ground_truth = outputs.answer; not found: answer, contexts; kept as "
        "metadata: split"),
    "langsmith runs": Case(
        "runs.jsonl",
        write_rows(*({"inputs": {"input": q}, "outputs": {"output": a}, "run_type": "chain"} for q, a in PAIRS)),
        ANSWERED,
        "columns: question = inputs, answer = outputs; not found: ground_truth, contexts; kept as metadata: run_type"),
    "langsmith experiment": Case(
        "experiment.jsonl",
        write_rows(
            {
                "inputs": {"question": TIDE},
                "outputs": {"answer": SIX, "documents": [{"page_content": "At six.", "metadata": {"id": "d"}}]},
                "reference_outputs": {"answer": MAUD}}),
        [{"question": TIDE, "answer": SIX, "ground_truth": MAUD, "contexts": ["At six."], "context_ids": ["d"]}],
        "columns: question = inputs.question, answer = outputs.answer, ground_truth = reference_outputs.answer, "
        "contexts = outputs.documents"),
    "inputs and outputs and no word more": Case(
        "dataset.csv", write_csv(inputs=[json.dumps({"question": TIDE})], outputs=[json.dumps({"answer": SIX})]),
        message=AMBIGUOUS.replace("{place}", "outputs.answer")),
    # --- names that are near
    "the same words in another case": Case(
        "cases.csv",
        write_csv(Question=[TIDE], generatedAnswer=[SIX], **{"Ground Truth": [MAUD], "Retrieval-Context": ['["c"]']}),
        [{"question": TIDE, "answer": SIX, "ground_truth": MAUD, "contexts": ["c"]}],
        "columns: question = Question, answer = generatedAnswer, ground_truth = Ground Truth, contexts = "
        "Retrieval-Context"),
    "what is spelled exactly wins": Case(
        "both.jsonl", write_rows({"question": TIDE, "expectedOutput": "no", "expected_output": SIX}),
        [{"question": TIDE, "ground_truth": SIX, "metadata": {"expectedOutput": "no"}}],
        "columns: question, ground_truth = expected_output; not found: answer, contexts; kept as metadata: "
        "expectedOutput"),
    "ideal": Case(
        "evals.jsonl", write_rows({"input": [tell("system", "Be brief."), tell("user", TIDE)], "ideal": SIX}), QA[:1],
        "columns: question = input, ground_truth = ideal; not found: answer, contexts"),
    # --- ragas and pandas
    "ragas to_csv": Case(
        "ragas.csv",
        write_csv(
            user_input=[TIDE, KEEPER], retrieved_contexts=[str(QUOTED), "[]"], response=[SIX, MAUD],
            reference=[SIX, MAUD]),
        [
            {"question": TIDE, "answer": SIX, "ground_truth": SIX, "contexts": QUOTED},
            {"question": KEEPER, "answer": MAUD, "ground_truth": MAUD, "contexts": []}],
        "columns: question = user_input, answer = response, ground_truth = reference, contexts = retrieved_contexts"),
    "a list that is code": Case(
        "code.csv", write_csv(question=[TIDE], contexts=["[__import__('os').getcwd()]"]),
        message="contexts are not a list but text that is a list neither in JSON nor in Python"),
    "ragas by columns": Case(
        "ragas.json",
        write_json(
            {
                "question": [TIDE, KEEPER], "answer": [SIX, MAUD], "contexts": [["a", "b"], []],
                "ground_truths": [[SIX, "six"], [MAUD]]}),
        [
            {"question": TIDE, "answer": SIX, "ground_truth": SIX, "contexts": ["a", "b"]},
            {"question": KEEPER, "answer": MAUD, "ground_truth": MAUD, "contexts": []}],
        "columns: question, answer, ground_truth = ground_truths[0], ground_truths, contexts"),
    "pandas to_json": Case(
        "pandas.json", write_json({"question": {"0": TIDE, "1": KEEPER}, "answer": {"0": SIX, "1": MAUD}}), ANSWERED,
        "columns: question, answer; not found: ground_truth, contexts"),
    "pandas to_json, its columns in other orders": Case(
        "pandas.json", write_json({"question": {"0": TIDE, "1": KEEPER}, "answer": {"1": MAUD, "0": SIX}}), ANSWERED,
        "columns: question, answer; not found: ground_truth, contexts"),
    "columns of different rows": Case(
        "torn.json", write_json({"question": {"0": TIDE, "1": KEEPER}, "answer": {"1": MAUD, "2": SIX}}),
        message="{path}: 'question' and 'answer' do not both have rows 0, 2; each column has a different name, each "
        "record a cell for each column, and a quote inside a quoted cell is doubled"),
    "a number of thousands of digits": Case(
        "long.json", lambda path: path.write_text(f'[{{"question": "q", "answer": {"9" * 5000}}}]'),
        message="{path}: broken JSON on line 1: a number with thousands of digits, or beyond all numbers; JSON has "
        "double quotes and no comma after the last member; fix or remove what is broken"),
    "columns of different lengths": Case(
        "torn.json", write_json({"question": [TIDE, KEEPER], "answer": [SIX]}),
        message="{path}: columns of different lengths: question 2, answer 1; each column has a different name, each "
        "record a cell for each column, and a quote inside a quoted cell is doubled"),
    # --- Excel
    "excel": Case(
        "qa.xlsx",
        write_sheets(
            QA=[
                ["id", "question", "answer", "contexts", "note"], [7, TIDE, 6, '["a"]', ""], [],
                [8, KEEPER, MAUD, "", 2.5]],
            Empty=[]),
        [
            {"sample_id": "7", "question": TIDE, "answer": "6", "contexts": ["a"], "metadata": {"note": None}},
            {"sample_id": "8", "question": KEEPER, "answer": MAUD, "metadata": {"note": 2.5}}],
        "columns: question, answer, contexts (in 1 of 2 rows), id; not found: ground_truth; kept as metadata: note"),
    "excel of two sheets": Case(
        "two.xlsx", write_sheets(One=[["question"], [TIDE]], Two=[["question"], [KEEPER]]),
        message="{path} has several sheets: which one?; allowed: its sheets: One, Two; write {path}#SHEET"),
    "the second sheet": Case(
        "two.xlsx#Two", write_sheets(One=[["question"], [TIDE]], Two=[["question"], [KEEPER]]), [{"question": KEEPER}],
        "columns: question; not found: answer, ground_truth, contexts"),
    "a sheet that is not there": Case(
        "two.xlsx#Three", write_sheets(One=[["question"], [TIDE]]),
        message="has no sheet 'Three'; allowed: its sheets: One; write "),
    "an invalid excel file": Case(
        "qa.xlsx", write_text("question\n", "utf-8"),
        message="{path}: cannot be read as .xlsx: invalid Zip archive: Could not find EOCD; the file must be "
        "readable to its end; write or download it again"),
    "excel with a note in the last corner": Case(
        "qa.xlsx", write_far_note,
        message="{path}: cannot be read as .xlsx: it takes more than 1,000 MB of memory to read: delete what is far "
        "outside the table, or save the sheet as .csv"),
    # --- encodings
    "excel's unicode text": Case(
        "qa.tsv", write_text(f"question\tanswer\r\n{GERMAN}\t{CHINESE}\r\n", "utf-16"),
        [{"question": GERMAN, "answer": CHINESE}],
        "read as utf-16, found by its bytes (--encoding names another); columns: question, answer; not found: "
        "ground_truth, contexts"),
    "excel's csv in Chinese": Case(
        "qa.csv", write_text(f"question,answer\r\n{CHINESE},灯塔高四十二米。\r\n", "gb18030"),
        [{"question": CHINESE, "answer": "灯塔高四十二米。"}],
        "read as gb18030, found by its bytes (--encoding names another); columns: question, answer; not found: "
        "ground_truth, contexts"),
    "French, in which the code pages differ": Case(
        "qa.csv", write_text("question\nOù est la très belle fenêtre ?\n", "cp1252"),
        message="the file may be in another encoding; line 2 reads 'Où est la trè' with --encoding cp1252, 'Oů est "
        "la trč' with --encoding cp1250, 'Oщ est la trи' with --encoding cp1251"),
    "French, by name": Case(
        "qa.csv", write_text("question\nOù est la très belle fenêtre ?\n", "cp1252"),
        [{"question": "Où est la très belle fenêtre ?"}],
        "read as cp1252; columns: question; not found: answer, ground_truth, contexts", encoding="cp1252"),
    "the wrong encoding by name": Case(
        "qa.csv", write_text(f"question\n{CHINESE}\n", "gb18030"), encoding="ascii",
        message="{path}: the file is not ascii: ordinal not in range(128) (0xb5); text files are read as UTF-8"),
    "an unknown encoding": Case(
        "qa.csv", write_text("question\nq\n", "utf-8"), encoding="utf-88",
        message="--encoding utf-88 is not known; allowed: utf-8, utf-16, cp1252, gb18030, latin-1 and the others "
        "that Python knows; name the one that the file was saved in"),
    "an encoding for a spreadsheet": Case(
        "qa.xlsx", write_sheets(One=[["question"], [TIDE]]), encoding="cp1252",
        message="--encoding cp1252 for {path}; allowed: text files; leave it out: this one states itself how its "
        "texts are written"),
}  # fmt: skip


def stage(folder: Path, case: Case) -> StagedDataset:
    case.write(folder / case.name.partition("#")[0])
    source = str(folder / case.name)
    return stage_dataset(source, mapping=case.mapping, limit=None, encoding=case.encoding)


def list_cases(*, taken: bool) -> list[object]:
    return [pytest.param(case, id=name) for name, case in CASES.items() if bool(case.samples) == taken]


@pytest.mark.parametrize("case", list_cases(taken=True))
def test_a_file_is_read_as_what_it_is(tmp_path: Path, case: Case) -> None:
    staged = stage(tmp_path, case)
    rows = staged.staging.read_between(1, 10)
    staged.staging.discard()
    assert staged.use.describe(is_asked=False) == case.columns
    wanted = [dict.fromkeys(("question", "answer", "ground_truth", "contexts")) | sample for sample in case.samples]
    assert [{name: getattr(row, name) for name in sample} for row, sample in zip(rows, wanted, strict=True)] == wanted


@pytest.mark.parametrize("case", list_cases(taken=False))
def test_a_file_that_could_be_several_things_is_asked_about(tmp_path: Path, case: Case) -> None:
    with pytest.raises(DatasetError) as caught:
        stage(tmp_path, case)
    assert case.message.replace("{path}", str(tmp_path / case.name)) in str(caught.value)


def test_the_guide_names_every_column_that_is_understood() -> None:
    guide = (Path(__file__).parents[2] / "flows/guides/judging.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.*`) \|$", guide, re.MULTILINE))
    aliases = {field: names[1:] for field, names in ALIASES.items() if len(names) > 1}
    assert {field: tuple(re.findall("`(.*?)`", names)) for field, names in rows.items()} == aliases


NEAR = {
    "gold": ("ground_truth", "ground_truth=gold"),
    "target": ("ground_truth", "ground_truth=target"),
    "answers": ("ground_truth", "ground_truths=answers"),
    "refernce": ("ground_truth", "ground_truth=refernce"),
    "completion": ("answer", "answer=completion"),
    "anwser": ("answer", "answer=anwser"),
    "retrieved_docs": ("contexts", "contexts=retrieved_docs"),
    "retrieved_contexs": ("contexts", "contexts=retrieved_contexs"),
}


@pytest.mark.parametrize("name", NEAR)
def test_a_column_that_is_only_likely_is_named_and_not_read(tmp_path: Path, name: str) -> None:
    path = write_json_lines(tmp_path / "qa.jsonl", [{"question": TIDE, name: SIX, "topic": "tides"}])
    staged = stage_dataset(str(path), mapping={}, limit=None)
    [sample] = staged.staging.read_between(1, 1)
    staged.staging.discard()
    assert (sample.answer, sample.ground_truth, sample.contexts) == (None, None, None)
    ours, mapping = NEAR[name]
    assert staged.use.suggest(is_asked=False) == [f"is {name!r} the {ours}? --map {mapping} reads it"]


def test_a_column_of_another_meaning_or_with_other_values_is_not_proposed() -> None:
    others = dict.fromkeys(("topic", "lang", "url", "score", "source", "difficulty", "answer_length"), "text")
    row = {**others, "promptIdx": 0, "prompts": [{"raw": "x"}], "answers": 3}
    assert suggest_columns(["question", "answer", "ground_truth", "contexts"], row) == []


OTHERS = {
    "euc_kr": "등대는 얼마나 높습니까? 밤에는 어디에서 볼 수 있습니까?",
    "big5": "燈塔有多高？請問我們可以在哪裡看到它的燈光？",
    "cp1251": "Какой высоты маяк и откуда его видно ночью?",
    "cp1253": "Πόσο ψηλός είναι ο φάρος;",
    "cp1254": "Deniz fenerinin yüksekliği ne kadar, ışığı kim yakıyor?",
    "cp1252": "¿Quién enciende el faro mañana?",
}


@pytest.mark.parametrize("encoding", OTHERS)
def test_an_encoding_that_is_not_certain_is_never_guessed(encoding: str) -> None:
    """A guess would silently be another text."""
    assert find_encoding([OTHERS[encoding].encode(encoding) + b"\n"]) is None


def test_one_wrong_line_does_not_turn_a_file_of_utf8_into_another() -> None:
    assert find_encoding([GERMAN.encode(), GERMAN.encode("cp1252")]) is None
    assert find_encoding([CHINESE.encode(), CHINESE.encode("gb18030")]) is None


@pytest.mark.parametrize(("encoding", "name"), [("utf-16-le", "qa.csv"), ("utf-16-be", "qa.jsonl")])
def test_utf16_is_known_without_its_mark(tmp_path: Path, encoding: str, name: str) -> None:
    text = f"question,answer\n{GERMAN},{CHINESE}\n"
    if name == "qa.jsonl":
        text = json.dumps({"question": GERMAN, "answer": CHINESE}, ensure_ascii=False)
    (tmp_path / name).write_bytes(text.encode(encoding))
    staged = stage_dataset(str(tmp_path / name), mapping={}, limit=None)
    ((sample,),) = staged.staging.read_parts()
    staged.staging.discard()
    assert (sample.question, sample.answer) == (GERMAN, CHINESE)
    assert f"read as {encoding}, found by its bytes" in staged.use.describe(is_asked=False)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("cp1254", "Deniz fenerinin yüksekliği ne kadar, ışığı kim yakıyor?"), ("cp1256", "ما هو ارتفاع المنارة؟")],
)
def test_readings_of_turkish_and_arabic_are_offered(tmp_path: Path, encoding: str, text: str) -> None:
    path = tmp_path / "qa.csv"
    path.write_bytes(f"question\n{text}\n".encode(encoding))
    with pytest.raises(DatasetError, match=f"with --encoding {encoding}"):
        stage_dataset(str(path), mapping={}, limit=None)
