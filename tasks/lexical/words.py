"""Words the lexical judge treats specially, English and Chinese: what carries no content and what negates; and how an
inflected English word comes back to its stem. What stands for or against what is in `lexical_meaning`, the reading of
texts in `lexical_text`.
"""

import re
from functools import lru_cache


def read_words(text: str) -> list[str]:
    """The words of a list written as one text."""
    return text.split()


def _words(text: str) -> frozenset[str]:
    return frozenset(read_words(text))


FUNCTION_WORDS = _words(
    """
    a an the this that these those it its he she his her him they them their theirs we us our ours you your yours i
    me am pm my mine myself himself herself itself themselves yourself ourselves who whom whose which what when
    where why how is are was were be been being am do does did doing done have has had having will would shall
    should can could may might must ought of in on at by for with from to into onto as about than then so such and
    or but if because while although though whether either both also too very just even still yet there here s t re
    ve ll d m one ones own same other others another some any each every much many more most few several etc eg ie
    via per upon among between within through during since until toward towards against along across around out off
    again further only however therefore thus hence moreover furthermore additionally meanwhile instead rather quite
    really well get got gets getting yeah yep oh ok okay nah hmm wow actually basically simply generally usually
    typically let us mr mrs ms dr sir say says said use used using like up down
    """
)
# They decide a comparison or a direction, so they are compared although they are short; they weigh little.
DIRECTION_WORDS = _words(
    """
    more less most least before after above below over under up down higher lower first last early late always never
    only all none
    """
)
NEGATIONS = _words(
    "not no non never without cannot none neither nor nothing nobody nowhere hardly barely scarcely n't lack lacks "
    "lacked "
    "fail fails failed unable refuse refuses refused deny denies denied"
)
CHINESE_STOP_CHARACTERS = frozenset(
    "的了是在和与及或也就都而且之其等将被把从对为以于并这那个着过吗呢吧啊呀地得所即则有它他她我你们"
)
# Words of the frame of a sentence or a list rather than of its content.
CHINESE_STOP_WORDS = _words(
    """
    包括 包含 分为 分成 可分为 可以 可能 主要 通常 一般 以下 如下 上述 进行 具有 属于 以及 或者
    因为 所以 因此 如果 由于 通过 关于 这个 这些 那些 什么 哪些 哪个 怎么 如何 为什么 我们 他们
    它们 她们 自己 同时 此外 另外 而且 并且 但是 不过 然而 例如 比如 其中 其他 就是 也就是 表示
    认为 一个 一种 一些 一是 二是 三是
    """
)
CHINESE_NEGATIONS = frozenset("不没未无非否勿别")
# Words in which a negating character negates nothing.
CHINESE_NOT_NEGATIONS = _words(
    """
    不同 不断 不仅 不但 不过 不少 不久 不锈 不只 不止 不论 不管 不如 不禁 不得不 不可或缺 无线 无论
    无人机 无数 无疑 非常 非洲 未来 是否 能否 否则 别的 别人 分别 特别 区别 级别 类别 性别 个别
    别墅 南非 除非 并非常 差别 识别 没收 淹没 沉没 无锡
    """
)


_IRREGULAR = """
    went go, gone go, goes go, wrote write, written write, rose rise, risen rise, sold sell, won win, made make,
    took take, taken take, gave give, given give, came come, became become, began begin, begun begin, bore bear,
    born birth, built build, bought buy, brought bring, broke break, broken break, caught catch, chose choose,
    chosen choose, did do, drew draw, drawn draw, drove drive, driven drive, ate eat, eaten eat, fell fall, fallen
    fall, felt feel, fought fight, found find, flew fly, flown fly, forgot forget, froze freeze, frozen freeze, grew
    grow, grown grow, heard hear, held hold, hid hide, hidden hide, kept keep, knew know, known know, laid lay, led
    lead, lent lend, lost lose, meant mean, met meet, paid pay, ran run, rang ring, said say, sang sing, sung sing,
    saw see, seen see, sent send, shot shoot, showed show, shown show, sank sink, sunk sink, sat sit, slept sleep,
    spoke speak, spoken speak, spent spend, stole steal, stolen steal, stood stand, struck strike, swam swim, taught
    teach, thought think, threw throw, thrown throw, told tell, understood understand, woke wake, wore wear, worn
    wear, children child, men man, women woman, people person, feet foot, teeth tooth, mice mouse, geese goose,
    wives wife, knives knife, wolves wolf, halves half, shelves shelf, criteria criterion, phenomena phenomenon,
    data datum, media medium, analyses analysis, crises crisis, theses thesis, died die, dying die, death die, dead
    die, tied tie, lying lie, lied lie, species species, series series, news news, united united, states state, does
    do, has have, was be, were be
"""


def read_pairs(text: str) -> list[tuple[str, str]]:
    """`a b, c d` to [(a, b), (c, d)]."""
    pairs = [pair.split() for pair in text.split(",") if pair.strip()]
    return [(left, right) for left, right in pairs]


_IRREGULAR_STEMS = dict(read_pairs(_IRREGULAR))
_UNCHANGED = _words("less process address various across always species series news united states")
_BRITISH = re.compile(r"is(e|ed|es|ing|ation|ations|er|ers)$")
_VOWELS = frozenset("aeiouy")
# Endings that leave the topic of a word as it is, by the shortest stem they may leave.
_ENDINGS = {
    3: "izations ization iveness fulness ousness izer",
    4: "ational ations ation ments ment ities ical ness ally ible able ance ence ions ity ism ist ize iz ive ful ous "
    "ion ate ors ers ly al ic er or",
    5: "ant ent ory ary",
}
_ENDINGS_BY_LAST: dict[str, list[tuple[str, int]]] = {}
for _shortest, _group in _ENDINGS.items():
    for _ending in _group.split():
        _ENDINGS_BY_LAST.setdefault(_ending[-1], []).append((_ending, _shortest))
for _candidates in _ENDINGS_BY_LAST.values():
    _candidates.sort(key=lambda candidate: -len(candidate[0]))  # the longest ending wins


def _strip_plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _strip_tense(word: str) -> str:
    for ending in ("ing", "ed"):
        if word.endswith(ending):
            stem = word[: -len(ending)]
            if len(stem) < 3 or not any(letter in _VOWELS for letter in stem):
                return word
            if word.endswith("ied"):
                return word[:-3] + "y"
            if stem[-1] == stem[-2] and stem[-1] not in "lsz":
                return stem[:-1]
            return stem
    return word


@lru_cache(maxsize=32768)
def stem_word(word: str) -> str:
    """The stem of a lower-case word: plural, tense and topic-keeping endings off, British -ise as -ize."""
    if not word.isascii():
        return word
    known = _IRREGULAR_STEMS.get(word)
    if known is None:
        if len(word) < 4 or word in _UNCHANGED:
            return word
        if len(word) > 6:
            word = _BRITISH.sub(r"iz\1", word)
        word = _strip_tense(_strip_plural(word))
        known = _IRREGULAR_STEMS.get(word, word)
    return _strip_ending(known)


def _strip_ending(word: str) -> str:
    for ending, shortest in _ENDINGS_BY_LAST.get(word[-1], ()):
        if word.endswith(ending) and len(word) - len(ending) >= shortest:
            word = word[: -len(ending)]
            break
    if len(word) > 4 and word[-1] == word[-2] and word[-1] in "lszt":
        word = word[:-1]
    if len(word) > 3 and word[-1] in "ey":
        word = word[:-1]
    return word
