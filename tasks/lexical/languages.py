"""Recognizes samples in a language that the lexical judge does not know: any but English and Chinese.

The judge splits and compares by the words, negations and sentence ends of these two. Another language is recognized by
letters of another script, or by the function words and letters of a language in Latin script. Names, numbers and other
short texts are taken for English or Chinese.
"""

import re
from collections import Counter
from functools import lru_cache
from typing import Final

from evalhouse.tasks.lexical.split import read_word_lists

# Letters by script, and the name under which a person knows it.
_SCRIPTS: Final = {
    "Russian or another language in Cyrillic script": re.compile("[\u0400-\u052f]"),
    "Greek": re.compile("[\u0370-\u03ff\u1f00-\u1fff]"),
    "Armenian": re.compile("[\u0531-\u0587]"),
    "Hebrew": re.compile("[\u05d0-\u05ea]"),
    "Arabic or another language in Arabic script": re.compile("[\u0620-\u064a\u066e-\u06d3\u0750-\u077f]"),
    "Hindi or another language in Devanagari": re.compile("[\u0900-\u0963]"),
    "a language of South Asia": re.compile("[\u0980-\u0dff]"),
    "Thai": re.compile("[\u0e01-\u0e4e]"),
    "a language in Lao, Tibetan, Burmese or Khmer script": re.compile("[\u0e80-\u109f\u1780-\u17ff]"),
    "Georgian": re.compile("[\u10a0-\u10ff\u1c90-\u1cbf]"),
    "Amharic or another language in Ethiopic script": re.compile("[\u1200-\u137f]"),
    "Korean": re.compile("[\u1100-\u11ff\uac00-\ud7af]"),
}
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa\uff66-\uff9d]")
_HAN = re.compile("[\u3400-\u9fff]")
_LATIN_WORD = re.compile("[A-Za-z\u00aa-\u024f\u1e00-\u1eff]+")
_ENGLISH = "English"
_MAX_LETTERS = 5_000  # of a longer text the beginning is looked at
_MIN_LETTERS = 8  # of a script; fewer may be a name
_KANA_SHARE = 0.2  # of Japanese at least, where Chinese may quote a name
_MIN_WORDS = 3  # different function words of a language
_LEAD = 1.5  # times as many as English has
# Two different words with such letters are as good as one function word, as in `Kahire Mısır'ın başkentidir`.
_LETTERS: Final = {
    "Turkish": re.compile("[ığşİĞŞ]"),
    "Vietnamese": re.compile("[đĐơƠưƯạ-ỹẠ-Ỹ]"),
    "Polish": re.compile("[łąęśńźż]"),
    "Czech": re.compile("[ěřůťň]"),
    "Hungarian": re.compile("[őű]"),
    "Romanian": re.compile("[țșăţş]"),
}


@lru_cache(maxsize=4096)  # asked for by several steps of a sample
def find_other_language(text: str) -> str | None:
    """Return the name of a text's language or script where it is neither English nor Chinese; None otherwise.

    >>> find_other_language("Was ist die Hauptstadt von Ägypten?")
    'German'
    >>> find_other_language("Rio de la Plata, Łódź and Müller") is None
    True
    """
    text = text[:_MAX_LETTERS]
    words = _LATIN_WORD.findall(text)
    if not text.isascii():
        counts = Counter({name: len(letters.findall(text)) for name, letters in _SCRIPTS.items()})
        n_kana, n_han = len(_KANA.findall(text)), len(_HAN.findall(text))
        (script, n_letters), *_ = counts.most_common(1)
        if n_letters >= _MIN_LETTERS and n_letters > n_han + n_kana + sum(map(len, words)):
            return script
        if n_kana >= _MIN_LETTERS and n_kana > _KANA_SHARE * (n_kana + n_han):
            return "Japanese"
        if n_han * 2 > len(words):  # a Chinese word has about two characters
            return None
    different = {word.casefold() for word in words}
    found = {language: len(different & listed) for language, listed in _FUNCTION_WORDS.items()}
    for language, letters in _LETTERS.items():
        found[language] += sum(letters.search(word) is not None for word in different)
    n_english = found.pop(_ENGLISH)
    language, n_words = max(found.items(), key=lambda entry: entry[1])
    return language if n_words >= _MIN_WORDS and n_words > _LEAD * n_english else None


_FUNCTION_WORDS = read_word_lists("languages")
