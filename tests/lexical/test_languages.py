"""Languages other than English and Chinese: recognized where it is sure, left alone by the lexical judge, and judged
by a model with the English prompts, in their own words."""

import re
from pathlib import Path

import pytest
from cli_house import place_at, write_dataset
from cli_process import Place
from endpoint import Endpoint
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, read_outcomes
from rows import RowsToCome
from warehouse_runs import lay_warehouse, make_run

from evalhouse.flows.results.output import make_console, make_table
from evalhouse.tasks.datasets.read import settle_language
from evalhouse.tasks.lexical.split import find_other_language, is_traditional
from evalhouse.tasks.testsets.passages import find_language
from evalhouse.warehouse.rows.pages import Search, find_samples
from evalhouse.warehouse.rows.runs import find_run, insert_run

OTHERS = {
    "German": "Der Leuchtturm wurde 1911 gebaut und ist nicht geöffnet.",
    "French": "Le phare a été construit en 1911 et il est fermé.",
    "Spanish": "El faro se construyó en 1911 y está cerrado.",
    "Italian": "Il faro è stato costruito nel 1911 ed è chiuso.",
    "Portuguese": "O farol foi construído em 1911 e não abre no inverno.",
    "Dutch": "De vuurtoren is in 1911 gebouwd en wordt niet gebruikt.",
    "Swedish": "Fyren byggdes 1911 och är inte öppen för besökare.",
    "Danish or Norwegian": "Fyret er bygget i 1911 og er ikke åbent for gæster.",
    "Polish": "Latarnia morska nie jest otwarta od 1911 roku.",
    "Czech": "Maják byl postaven v roce 1911 a není otevřen pro hosty.",
    "Hungarian": "A torony 1911-ben épült, és nem látogatható, mert egy része hiányzik.",
    "Romanian": "Farul a fost construit în 1911 și nu este deschis.",
    "Turkish": "Deniz feneri 1911 yılında yapıldı ve kapalıdır.",
    "Vietnamese": "Ngọn hải đăng được xây năm 1911.",
    "Indonesian or Malay": "Mercusuar itu dibangun pada tahun 1911 dan tidak dibuka.",
    "Finnish": "Majakka on rakennettu vuonna 1911, ja se ei ole auki.",
    "Russian or another language in Cyrillic script": "Маяк построили в 1911 году.",
    "Greek": "Ο φάρος χτίστηκε το 1911.",
    "Hebrew": "המגדלור נבנה בשנת 1911.",
    "Arabic or another language in Arabic script": "بنيت المنارة عام 1911.",
    "Hindi or another language in Devanagari": "प्रकाशस्तंभ 1911 में बना था।",
    "a language of South Asia": "বাতিঘরটি ১৯১১ সালে তৈরি।",
    "Thai": "ประภาคารสร้างในปี 1911",
    "Georgian": "შუქურა 1911 წელს აშენდა.",
    "Korean": "등대는 1911년에 지어졌습니다.",
    "Japanese": "灯台は1911年に建てられました。",
}
OWN = [
    "",
    "Paris",
    "東京タワー",
    "Łódź",
    "Who was Friedrich Müller von der Heide?",
    "The lighthouse was built in 1911.",
    "In German, 'Wie geht es dir?' is a way to ask how a person is.",
    "Which river flows through Moscow (Москва)?",
    "Jorge Luis Borges wrote El Aleph and Ficciones.",
    "灯塔建于1911年。",
    "這座燈塔建於1911年。",
    "《となりのトトロ》是哪一年上映的动画电影？它于1988年上映。",
    "在 Windows 10 and Linux 上安装 Python。",
    "C:\\users\\new \\d+ \\theta",
]


@pytest.mark.parametrize("language", OTHERS)
def test_another_language_is_recognized_by_a_sentence(language: str) -> None:
    assert find_other_language(OTHERS[language]) == language


@pytest.mark.parametrize("text", OWN)
def test_english_chinese_names_and_numbers_are_its_own(text: str) -> None:
    assert find_other_language(text) is None


@pytest.mark.parametrize(("text", "expected"), [
    ("很抱歉，我無法回答這個問題。", True),
    ("很抱歉，我无法回答这个问题。", False),
    ("對不起，文件沒有提到。", True),
    ("七天內。", True),
    ("象鼩目", False),
    ("蔡英文在台灣出生。灯塔建于1911年，很多人都来看。", False),
    ("国立台湾大学（國立臺灣大學）位于台北市大安区。", False),
    ("National Taiwan University (國立臺灣大學) is in Taipei.", False),
    ("The lighthouse was built in 1911.", False),
])  # fmt: skip
def test_traditional_characters_are_recognized(text: str, expected: bool) -> None:
    assert is_traditional(text) == expected


GERMAN = {
    "question": "Wie hoch ist der Turm?",
    "answer": "Der Turm ist 50 m hoch.",
    "ground_truth": "Der Turm ist 40 m hoch.",
    "contexts": ["Der Turm ist 40 m hoch."],
}


@pytest.mark.slow
def test_run_warns_once_with_the_language_and_what_to_do(tmp_path: Path, prefect_home: Path) -> None:
    rows = [{"id": f"de{number}", **GERMAN, "question": f"Wie hoch ist der Turm {number}?"} for number in range(3)]
    english = {"id": "en", "question": "How high?", "answer": "It is 50 m.", "ground_truth": "It is 50 m."}
    dataset = write_dataset(tmp_path, [*rows, english])
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    metrics = ("--metrics", "factual_f1,exact_match,answer_rate")
    ran = place.call("run", dataset.name, "--judge", "lexical", *metrics)
    assert ran.stdout.count("the lexical judge knows English and Chinese only: 3 samples in German") == 1
    assert "--judge openai:MODEL" in ran.stdout
    shown = place.call("show", "--json").document
    assert sum("3 samples in German" in warning for warning in shown["warnings"]) == 1
    scored = {row["metric"]: (row["n_scored"], row["n_unscored"]) for row in shown["metrics"]}
    assert scored == {"factual_f1": (1, 3), "answer_rate": (1, 3), "exact_match": (4, 0)}


# A model that judges them

TEXTS = {
    "German": ("Wann wurde der Turm gebaut?", "Der Turm wurde 1911 gebaut. Er ist 40 m hoch. "),
    "Japanese": ("灯台はいつ建てられましたか。", "灯台は１９１１年に建てられました。高さは40メートルです。"),
    "Arabic or another language in Arabic script": ("متى بُنيت المنارة؟", "بُنيت المنارة عام ١٩١١. ارتفاعها 40 مترًا. "),
    "Hindi or another language in Devanagari": ("मीनार कब बनी?", "मीनार १९११ में बनी। वह 40 मीटर ऊँची है। "),
}


@pytest.mark.parametrize("language", TEXTS)
async def test_a_model_judges_long_texts_of_any_language_in_their_words(
    language: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    question, sentences = TEXTS[language]
    first, second = re.findall(r".+?[.。।]\s*", sentences)
    answer = "".join(f"{number}: {first}{number}: {second}" for number in range(100, 180))
    sample = make_sample(1, question=question, answer=answer, ground_truth=sentences, contexts=[sentences, "X."])
    async with lay_out_run(tmp_path, make_settings(request_tokens=500)) as live_run:
        (work,) = await judge_samples(live_run, [sample])
    assert set(read_outcomes(work).values()) == {None}
    statements = [str(row["text"]) for row in work.rows["statements"] if row["source"] == "answer"]
    assert "".join(statements).replace(" ", "") == answer.replace(" ", ""), "nothing is lost, changed or translated"
    asked = [str(body["messages"][-1]["content"]) for body in endpoint.stats.bodies if "messages" in body]
    assert sum("<text " in content and f": {first.strip()}" in content for content in asked) > 2, "in several requests"
    ids = {str(row["statement_id"]) for row in work.rows["statements"]}
    assert {str(row["statement_id"]) for row in work.rows["classifications"]} == ids
    assert {str(row["statement_id"]) for row in work.rows["attributions"]} == ids
    systems = {body["messages"][0]["content"] for body in endpoint.stats.bodies if "messages" in body}
    assert all("The texts may be in any language" in text or "which may be any language" in text for text in systems)


def write_texts(folder: Path, *languages: str) -> Path:
    own = {"Chinese": ("灯塔建于何时？", "灯塔建于1911年。高四十米。"), "English": ("When?", "It is from 1911.")}
    texts = TEXTS | own
    rows = [
        {"id": f"s{number}", "question": f"{question} ({number})", "answer": answer, "ground_truth": answer}
        for number, (question, answer) in enumerate(texts[language] for language in languages)
    ]
    return write_dataset(folder, rows)


@pytest.mark.parametrize(("languages", "language", "note"), [
    (["Chinese"], "zh", "prompts in zh: 1 of the 1 samples are in Chinese"),
    (["Japanese"], "en", "prompts in en: 0 of the 1 samples are in Chinese"),
    (["Chinese", "Chinese", "German"], "zh", "2 of the 3 samples are in Chinese; all are judged by the same prompts"),
    (["Chinese", "English"], "en", "1 of the 2 samples are in Chinese; all are judged by the same prompts"),
])  # fmt: skip
def test_auto_is_chinese_for_mostly_chinese_texts_and_english_for_all_others(
    tmp_path: Path, languages: list[str], language: str, note: str
) -> None:
    settings = make_settings(dataset=str(write_texts(tmp_path, *languages)), language="auto")
    settled, (shown,) = settle_language(settings)
    assert settled.language == language
    assert note in shown
    assert settle_language(settled) == (settled, ())


def test_japanese_documents_and_samples_do_not_count_as_chinese(tmp_path: Path) -> None:
    japanese, _ = TEXTS["Japanese"]
    assert [find_language(text) for text in (japanese, "灯塔建于何时？", "Wann?")] == ["en", "zh", "en"]
    warehouse = lay_warehouse(tmp_path / "w.duckdb")
    insert_run(warehouse, make_run("r", status="completed"))
    rows = RowsToCome()
    for name in (japanese, "灯塔建于何时？"):
        rows.add("samples", {"sample_id": name, "input_hash": "h", "question": name})
        rows.add("run_samples", {"run_id": "r", "sample_id": name, "input_hash": "h"})
    rows.write(warehouse)
    run = find_run(warehouse, "r")
    found = {
        language: find_samples(warehouse, run, Search(metric=None, sort="id", descending=False, language=language))
        for language in ("en", "zh")
    }
    assert found == {"en": [japanese], "zh": ["灯塔建于何时？"]}


@pytest.mark.slow
def test_run_names_the_language_of_prompts_and_what_is_not_known_about_texts_in_another(
    endpoint: Endpoint, tmp_path: Path, prefect_home: Path
) -> None:
    dataset = write_texts(tmp_path, "German", "German", "English")
    place = place_at(tmp_path, prefect_home, endpoint.base_url)
    run = ("run", dataset.name, "--judge", "openai:judge", "--language", "auto", "--metrics", "factual_f1,answer_rate")
    known = "2 of 3 samples are in German"
    dry, ran, shown = place.call(*run, "--dry-run"), place.call(*run), place.call("show")
    for printed in (dry.stderr, ran.stderr):
        assert "prompts in en: 0 of the 3 samples are in Chinese" in printed
    for printed in (dry.stderr, ran.stdout, shown.stdout):
        assert " ".join(printed.split()).count(known) == 1
        assert "measured on English and Chinese texts only" in " ".join(printed.split())
    assert "prompts in en" in shown.stdout


def test_columns_stay_in_their_places_where_a_terminal_reorders_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question, answer = TEXTS["Arabic or another language in Arabic script"]
    table = make_table(["sample", "question", "#value", "answer"], [["s1", question, 0.5, answer]])
    make_console().print(table)
    piped = capsys.readouterr().out
    assert "\u200e" not in piped
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    make_console().print(table)
    _, line, *_ = capsys.readouterr().out.splitlines()
    assert [cell[:1] for cell in line.split("  ") if cell.strip()][1:] == ["\u200e"] * 3
    assert line.startswith("s1")
