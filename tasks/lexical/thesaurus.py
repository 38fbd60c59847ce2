"""Words that stand for each other and words that stand against each other, English and Chinese, by stem: a short
hand-made thesaurus of everyday factual prose for the lexical judge (`lexical_support` weighs what it finds).
"""

from collections.abc import Iterable

from evalhouse.tasks.lexical.words import read_pairs, stem_word

_ANTONYMS = """
    increase decrease, increase decline, increase reduce, increase drop, increase fall, rise fall, rise decline,
    rise drop, rise decrease, grow shrink, grow decline, grow decrease, grow fall, gain lose, gain loss, profit
    loss, up down, higher lower, high low, more less, most least, more fewer, above below, over under, before after,
    early late, earlier later, first last, large small, big small, long short, longer shorter, fast slow, hot cold,
    warm cool, heavy light, hard soft, strong weak, rich poor, good bad, better worse, best worst, positive
    negative, open close, begin end, start end, start stop, start finish, begin finish, accept reject, accept
    refuse, approve reject, agree disagree, allow prohibit, allow forbid, allow ban, allow prevent, permit forbid,
    legal illegal, buy sell, import export, win lose, victory defeat, succeed fail, success failure, true false,
    correct incorrect, right wrong, left right, north south, east west, northern southern, eastern western, male
    female, man woman, boy girl, father mother, son daughter, brother sister, husband wife, king queen, day night,
    old new, old young, ancient modern, public private, internal external, inner outer, inside outside, indoor
    outdoor, front back, top bottom, upper lower, maximum minimum, major minor, majority minority, add remove, add
    subtract, include exclude, attack defend, arrive depart, appear disappear, always never, often rarely, often
    seldom, all none, same different, similar different, simple complex, easy difficult, easy hard, safe dangerous,
    healthy unhealthy, full empty, alive dead, life death, born died, birth death, marry divorce, love hate, friend
    enemy, guilty innocent, strengthen weaken, expand contract, improve worsen, widen narrow, raise lower, broaden
    narrow, accelerate slow, supervised unsupervised, linear nonlinear, finite infinite, static dynamic, active
    passive, permanent temporary, local global, domestic foreign, domestic international, urban rural, military
    civilian, primary secondary, outperform underperform, overestimate underestimate, exceed miss, ahead behind,
    offer request, teach learn, parent child, host guest, employer employee, seller buyer, lender borrower, hire
    fire, connect disconnect, closed open, series parallel, attract repel, absorb reflect, solid liquid, liquid gas,
    conductor insulator, efficient inefficient, sufficient insufficient, dependent independent, visible invisible,
    possible impossible, reject accept, continue stop, continue discontinue, maintain change, keep discard, reveal
    hide, free paid, optional mandatory, optional required, complimentary paid, monthly annual, monthly yearly,
    weekly monthly, daily weekly, quarter year, month year, week month, day week, hour minute, hour day, short long,
    wide narrow, deep shallow, thick thin, bright dark, wet dry, loud quiet, light dark, clean dirty, cheap
    expensive, rough smooth, flexible rigid, familiar unfamiliar, known unknown, certain uncertain, stable unstable,
    regular irregular
"""
_CHINESE_ANTONYMS = """
    增加 减少, 增长 下降, 增长 减少, 上升 下降, 上涨 下跌, 提高 降低, 提升 下降, 扩大 缩小, 加强 减弱,
    增强 减弱, 增大 减小, 升高 降低, 支持 反对, 同意 反对, 同意 拒绝, 接受 拒绝, 允许 禁止, 成功 失败,
    正确 错误, 优点 缺点, 有利 不利, 有效 无效, 合法 非法, 安全 危险, 公开 秘密, 开始 结束, 开放 关闭,
    打开 关闭, 进口 出口, 买入 卖出, 盈利 亏损, 最高 最低, 最大 最小, 最多 最少, 高于 低于, 大于 小于,
    多于 少于, 早于 晚于, 之前 之后, 以前 以后, 以上 以下, 上午 下午, 上半 下半, 男性 女性, 父亲 母亲,
    儿子 女儿, 哥哥 弟弟, 丈夫 妻子, 东部 西部, 南部 北部, 国内 国外, 国内 国际, 内部 外部, 直接 间接,
    主动 被动, 静态 动态, 线性 非线性, 连续 离散, 连续 不连续, 简单 复杂, 容易 困难, 快速 缓慢, 较快 较慢,
    较高 较低, 较大 较小, 较多 较少, 积极 消极, 乐观 悲观, 必须 无需, 需要 不需, 先进 后进, 先出 后出,
    插入 删除, 有序 无序, 稳定 不稳, 升序 降序, 左边 右边, 左侧 右侧, 左子 右子, 长期 短期, 固定 变动,
    首次 再次, 赞成 反对
"""

# Each line is one group of words that stand for each other in most factual sentences.
_SYNONYMS = """
    begin start commence launch initiate
    end finish conclude terminate complete
    big large huge massive enormous great
    small little tiny
    buy purchase acquire
    show demonstrate display exhibit illustrate indicate reveal
    help assist aid
    build construct erect
    make create produce generate manufacture
    found establish
    increase grow rise climb
    decrease decline drop fall reduce shrink lower diminish
    get obtain receive gain
    give provide supply offer
    need require
    keep retain maintain preserve
    die decease
    kill slay murder
    movie film picture
    kid child
    doctor physician
    car automobile
    country nation
    company firm corporation business enterprise
    job occupation profession
    area region zone
    part component element portion
    type kind sort category
    important significant crucial essential vital key
    many numerous
    fast quick rapid speedy
    hard difficult challenging
    easy simple
    different distinct
    main primary principal chief
    author writer
    actor actress
    lawyer attorney
    use utilize employ utilise
    contain include comprise consist
    change alter modify
    fix repair
    choose select pick
    try attempt
    speak talk
    call name term
    call phone telephone
    live reside dwell
    travel journey
    happen occur
    cause lead result
    improve enhance
    hit strike
    connect link join attach
    separate divide split
    touch contact
    move shift
    show appear
    push press
    gather collect
    bulb light lamp
    aim goal objective purpose
    idea concept notion
    method approach technique
    problem issue
    answer response reply
    money cash
    war conflict
    sea ocean
    rock stone
    road street
    ill sick
    rich wealthy
    old elderly aged
    wed marry
    win victory
    quit resign
    last final
    near close
    home house residence
    pupil student
    teacher instructor
    boss manager supervisor
    worker employee
    customer client
    price cost
    income revenue
    award prize
    city town
    us usa america american
    uk britain british
    male man
    female woman
    around approximately roughly nearly almost
    yearly annual annually
    represent symbolize symbolise stand
    star feature
"""
NEGATIVE_PREFIXES = ("un", "in", "im", "ir", "il", "dis", "non")


def _oppose(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """A two-way table of opposites."""
    table: dict[str, set[str]] = {}
    for left, right in pairs:
        table.setdefault(left, set()).add(right)
        table.setdefault(right, set()).add(left)
    return {word: frozenset(others) for word, others in table.items()}


def _group(text: str) -> dict[str, frozenset[str]]:
    """Stem to the other stems of its groups."""
    table: dict[str, set[str]] = {}
    for line in text.strip().splitlines():
        group = {stem_word(word) for word in line.split()}
        for stem in group:
            table.setdefault(stem, set()).update(group - {stem})
    return {stem: frozenset(others) for stem, others in table.items()}


ANTONYMS = _oppose((stem_word(left), stem_word(right)) for left, right in read_pairs(_ANTONYMS))
CHINESE_ANTONYMS = _oppose(read_pairs(_CHINESE_ANTONYMS))
SYNONYMS = _group(_SYNONYMS)
