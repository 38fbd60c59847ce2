"""What states nothing: questions, greetings, refusals, filler, orders to the judge, lead-ins and bare addresses, in
English and Chinese.
`lexical_split` leaves such sentences out.
"""

import re

_HAN = re.compile(r"[\u3400-\u9fff]")
_LETTER = re.compile(r"[^\W_]")
_QUESTION_END = re.compile(r"(?:[?？]|吗[。]?|呢[。]?)[\"'”’」』)）]*$")
# A statement about a question: words before a quotation that ends in a question mark.
_QUOTED_QUESTION = re.compile(r"\w\W+\w+\W*[\s：:，,][\"“「『][^\"“”「」『』]+[?？][\"”」』]$")
_LEAD_END = re.compile(r"[:：]\s*$")
_ADDRESS = re.compile(r"^(?:https?://|www\.)\S+$")

# English patterns, each under the words of which every text that it finds holds at least one: to look for plain words
# is many times faster. Under no word stand the patterns that look at the start of a sentence only.
_SILENCES = {
    # the speaker cannot
    "sorry|afraid|unable|not": (
        r"\b(?:i|we)(?:'m| am|'re| are)?\s+(?:(?:really|truly|very|so)\s+)?"
        r"(?:sorry|afraid|unable|not (?:able|sure|certain|aware|familiar))\b"
    ),
    "n't|not|unable": (
        r"\b(?:i|we)\s+(?:do not|don't|did not|didn't|cannot|can't|could not|couldn't|can not|"
        r"was unable|were unable)\s+"
        r"(?:\w+\s+){0,2}?(?:know|find|answer|provide|determine|tell|locate|help|assist|access|confirm|verify|recall|"
        r"have (?:\w+\s+){0,2}?(?:access|information|data|details?|knowledge|answer|opinions?|context))\b"
    ),
    "as a": (r"\bas an? (?:ai|artificial intelligence|language model|assistant)\b"),
    "i have no": (r"\bi have no (?:idea|information|knowledge|data)\b"),
    # the sources do not say
    "no|insufficient": (
        r"\b(?:no|not enough|insufficient|not any) (?:relevant |specific |sufficient |further )?"
        r"(?:information|answer|details?|context|data|mention)\b.{0,60}"
        r"\b(?:available|provided|found|given|context|documents?|passages?|text)\b"
    ),
    "n't|not|lack": (
        r"\b(?:the |this )?(?:provided |given |retrieved |above )(?:context|passages?|documents?|text|"
        r"information|sources?|articles?)\s+(?:\w+\s+){0,2}?"
        r"(?:does not|doesn't|do not|don't|did not|didn't|cannot|lacks?)\b"
    ),
    "n't| not": (
        r"\b(?:the |this )?(?:context|passages?|documents?)\s+(?:\w+\s+){0,2}?(?:does not|doesn't|do not|don't)\s+"
        r"(?:\w+\s+){0,2}?(?:mention|contain|provide|specify|say|state|include|answer|give|address)\b"
    ),
    "it is": (
        r"\bit is (?:not (?:clear|specified|mentioned|stated|possible to (?:say|tell|answer|determine))|unclear from|"
        r"impossible to (?:say|tell|answer|determine))\b"
    ),
    "hope|let me know|feel free|hesitate|happy|glad|if you|anything else|can i help|here to help": (
        r"\b(?:i hope (?:this|that|it)|hope (?:this|that) helps|(?:please )?let me know|feel free to|"
        r"(?:don't|do not) hesitate to (?:ask|contact|reach|let)|happy to help|"
        r"glad to (?:help|assist)|i(?:'d| would) be (?:happy|glad)|"
        r"if you (?:have|need|want) (?:any|more|further|additional)|is there anything else|how can i help|"
        r"i'm here to help)\b"
    ),
    # orders to whoever judges the text, and replies made up for them
    "ignore|disregard|forget|override": (
        r"(?:^|[.!,:;]\s*|\b(?:please|now|must)\s+)"
        r"(?:ignore|disregard|forget|override)\s+"
        r"(?:(?:all|any|the|your|these|those|of|previous|prior|earlier|above)\s+){1,4}(?:instructions?|prompts?|rules)\b"
    ),
    " as ": (
        r"(?:^|\b(?:and|please|then|now|must)\s+)(?:mark|label|rate|grade|score|judge|count)\b.{0,20}"
        r"\b(?:all|every|each|everything)\b.{0,40}\bas\s+\W?(?:TP|true|correct|useful|supported)\b"
    ),
    "verdict": (r"[\"']verdicts?[\"']\s*:"),
    "": (
        r"^(?:unknown|unanswerable|n/?a|no answer|not (?:known|specified|mentioned|provided|available)|no idea|idk|"
        r"i have no idea)[.!]*$|"
        r"^(?:(?:hi|hello|hey|greetings|dear \w+|good (?:morning|afternoon|evening|question)|great question|thanks?|"
        r"thank you|sure|certainly|of course|absolutely|ok(?:ay)?|right|well|sorry|please|welcome|bye|goodbye|cheers)\b"
        r"(?:[\s,!.]+(?:there|all|everyone|so much|very much|for \w+(?: \w+){0,6}|thing|you|it))*[\s,!.]*)+$|"
        r"^(?:(?:sure|certainly|of course|okay|ok|absolutely)[,!.\s]+)?(?:here(?: is|'s| are)|below (?:is|are)|"
        r"(?:the )?following (?:is|are))\b[^.]{0,80}[:：]$|"
        r"^(?:in (?:summary|conclusion|short)|to summari[sz]e|overall|note|answer|example|summary|conclusion|"
        r"references?|sources?)[\s:：,.]*$"
    ),
}
_REFUSALS_ZH = (
    r"(?:抱歉|对不起|很遗憾|不好意思).{0,30}(?:无法|不能|没有|不知道|未能|不清楚|不了解|没法)",
    r"(?:^|[，,]|我们?|目前|暂时|因此|所以)(?:无法|不能|未能|没法|没能)(?:准确|确定|直接|从中|在.{0,20}中)?(?:地)?"
    r"(?:回答|找到|提供|确定|得知|判断|获取|确认|查到|给出)",
    r"(?:我|本人)(?:也)?(?:并)?(?:不知道|不清楚|不了解|不确定|没有找到|没找到|没有相关)",
    r"^(?:不知道|不清楚|未知|不详|暂无|没有答案|不确定|不会)[。！!.]*$",
    r"(?:没有|未|并未|暂无|缺乏).{0,12}(?:提到|提及|提供|说明|找到|包含|涉及|给出|相关信息|相关内容|相关资料|足够的?信息)"
    r".{0,20}(?:信息|内容|资料|答案|说明)[。！]?$",
    r"(?:上下文|资料|文档|文中|材料|信息)(?:中|里)?(?:并)?(?:没有|未)(?:明确)?(?:提到|提及|提供|说明|包含|涉及|给出)",
    r"作为(?:一个|一名)?(?:AI|人工智能|语言模型|智能助手)",
)
_FILLERS_ZH = (
    r"^(?:(?:你好|您好|嗨|大家好|谢谢|感谢您?的?(?:提问|咨询|来信|支持)?|不客气|再见|好的|当然(?:可以)?|没问题|嗯|"
    r"很高兴为您(?:服务|解答)|亲|抱歉|对不起)[，,！!。.~～呀啊哦\s]*)+$",
    r"希望.{0,16}(?:帮助|有用|有所帮助|帮到)",
    r"如果?(?:您|你).{0,24}(?:随时|请告诉|请联系|继续(?:提问|问我))",
    r"(?:欢迎|请)随时|如有(?:其他|任何|更多|疑问).{0,30}$|很高兴(?:为|能|回答)",
    r"^(?:以下|下面|如下)(?:是|为|列出).{0,40}[:：]$",
    r"^(?:总之|综上所述|总的来说|总结|答案?|参考资料|来源|注意?)[：:，,。]*$",
)

_ORDERS_ZH = (
    r"(?:^|[，,：:]|请)(?:忽略|无视|忘记|忘掉|不要理会)(?:以上|之前|此前|上面|前面|所有|一切|全部|任何|你的|您的|的){1,5}"
    r"(?:指令|提示|要求|规则|说明)",
    r"(?:全部|所有|都|一律|每).{0,12}(?:标为|标记为|标注为|判为|判定为|评为)\s*[“\"']?(?:TP|正确|有用|支持|满分)",
    r"[\"']verdicts?[\"']\s*:",
)
_SILENT = {tuple(words.split("|")): re.compile(pattern, re.IGNORECASE) for words, pattern in _SILENCES.items()}
_SILENT_ZH = re.compile("|".join(_REFUSALS_ZH + _FILLERS_ZH + _ORDERS_ZH), re.IGNORECASE)


def _is_silent(sentence: str) -> bool:
    if _HAN.search(sentence):
        return _SILENT_ZH.search(sentence) is not None
    lower = sentence.lower()
    return any(
        pattern.search(sentence) is not None
        for words, pattern in _SILENT.items()
        if any(word in lower for word in words)
    )


def asserts_something(sentence: str) -> bool:
    """Whether a sentence states anything at all."""
    if not _LETTER.search(sentence) or _ADDRESS.match(sentence):
        return False
    if (_QUESTION_END.search(sentence) and not _QUOTED_QUESTION.search(sentence)) or _LEAD_END.search(sentence):
        return False
    return not _is_silent(sentence.replace("’", "'").strip())
