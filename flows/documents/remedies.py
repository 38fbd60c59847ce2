"""What each cause of a bad answer is called, what it means, and what to try against it, in English and Chinese.

The causes themselves are given by the views `cause_rules` and `sample_causes`; here are only words, for
`evalhouse diagnose` and for whatever else tells a person about them. Both languages say the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Cause = Literal[
    "not_judged",
    "judge_suspect",
    "ground_truth_doubtful",
    "refused_although_supported",
    "retrieval_missed",
    "knowledge_base_lacks",
    "not_in_contexts",
    "ranked_too_low",
    "hallucinated",
    "misled_by_contexts",
    "contexts_ignored",
    "own_knowledge",
    "fine",
]
"""All causes, in the order of their first rules."""
Language = Literal["en", "zh"]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One cause in one language: `name` for a table, `meaning` in a sentence, `remedies` the likeliest first."""

    name: str
    meaning: str
    remedies: tuple[str, ...]


ENGLISH: Final[Mapping[Cause, Advice]] = {
    "not_judged": Advice(
        name="not judged",
        meaning="Verdicts that the diagnosis rests on are missing.",
        remedies=(
            "`evalhouse resume RUN` asks again for what failed or was never reached.",
            "Give the dataset what it lacks: an answer, a ground truth, the retrieved contexts.",
            "Score the usual metrics, so that statements are classified and attributed.",
        ),
    ),
    "judge_suspect": Advice(
        name="judge suspect",
        meaning="The verdicts contradict each other, or the judge's votes do.",
        remedies=(
            "Read the verdicts: `evalhouse lineage RUN SAMPLE`.",
            "Judge with `--votes 3`, or by a stronger model.",
            "Adapt the judge's prompts to your texts (`--prompts DIR`), with worked examples of your own.",
        ),
    ),
    "ground_truth_doubtful": Advice(
        name="ground truth doubtful",
        meaning="The contexts bear out the answer, but the ground truth lacks it or says something else.",
        remedies=(
            "Have a person check the ground truth against the contexts, and complete or correct it.",
            "Look whether the knowledge base has changed since the ground truth was written.",
            "If the answer only says more than it was asked for, let the bot's prompt ask for less.",
        ),
    ),
    "refused_although_supported": Advice(
        name="refused although supported",
        meaning="The bot gave no answer although the contexts hold it.",
        remedies=(
            "Prompt: refuse only when the contexts hold nothing, with an example of answering in part.",
            "Lower the similarity or safety threshold that makes the bot decline.",
            "Generation settings: a model that follows instructions better, more room for the contexts.",
        ),
    ),
    "retrieval_missed": Advice(
        name="retrieval missed it",
        meaning="The knowledge base holds what was needed, and retrieval did not bring it.",
        remedies=(
            "Rewrite queries: resolve pronouns and earlier turns, spell out acronyms, split compound questions.",
            "Change embeddings: a model trained for the language and field, or keyword search beside it.",
            "Retrieve more (a larger k) and rerank.",
            "Cut documents otherwise: by section, with the title in each piece.",
        ),
    ),
    "knowledge_base_lacks": Advice(
        name="knowledge base lacks it",
        meaning="The documents that should hold what was needed were retrieved, and do not hold it.",
        remedies=(
            "Complete the knowledge base: add or update the documents named by the reference ids.",
            "Look whether their pieces were cut so that the passage was lost (tables, lists, footnotes).",
            "If nobody should expect it there, correct the ground truth.",
        ),
    ),
    "not_in_contexts": Advice(
        name="not in the contexts",
        meaning="What was needed is in no retrieved context; whether the knowledge base has it cannot be told.",
        remedies=(
            "Search the knowledge base for the missing statements: what is not there has to be added.",
            "What is there was not retrieved: rewrite queries, change embeddings, retrieve more.",
            "Give the dataset `reference_context_ids`; then evalhouse can tell the two apart.",
        ),
    ),
    "ranked_too_low": Advice(
        name="ranked too low",
        meaning="A context holds what was left out, but behind contexts that do not help.",
        remedies=(
            "Rerank the retrieved contexts with a cross-encoder before they reach the model.",
            "Pass fewer, better contexts, and drop repeated ones.",
            "Mix keyword and vector search, and weigh titles and dates.",
        ),
    ),
    "hallucinated": Advice(
        name="hallucinated against contexts",
        meaning="The answer states what is wrong and in no context.",
        remedies=(
            "Prompt: answer from the contexts alone, cite them, and say so when they hold nothing.",
            "Generation settings: a lower temperature, a more faithful model.",
            "Check each answer against its contexts before it is shown, and let unsupported sentences go.",
        ),
    ),
    "misled_by_contexts": Advice(
        name="misled by contexts",
        meaning="The answer repeats contexts that have nothing to do with the ground truth.",
        remedies=(
            "Rerank, and drop contexts below a threshold.",
            "Filter by metadata: product, version, date, language.",
            "Prompt: use only what answers the question.",
        ),
    ),
    "contexts_ignored": Advice(
        name="contexts ignored",
        meaning="The contexts hold what was needed, near the top, and the answer leaves it out.",
        remedies=(
            "Prompt: ask for every point that answers the question, with an example of a complete answer.",
            "Generation settings: a higher limit of output tokens, a stronger model.",
            "Pass fewer or shorter contexts, with the best first or last.",
        ),
    ),
    "own_knowledge": Advice(
        name="answered from own knowledge",
        meaning="The answer is right, but no context supports it: it will be wrong when the world changes.",
        remedies=(
            "Complete the knowledge base, or mend retrieval, so that the contexts hold it.",
            "Prompt: answer from the contexts alone, if that is what you want.",
        ),
    ),
    "fine": Advice(name="fine", meaning="Nothing worth mending was found.", remedies=()),
}

CHINESE: Final[Mapping[Cause, Advice]] = {
    "not_judged": Advice(
        name="未评判",
        meaning="缺少诊断所依据的判定。",
        remedies=(
            "`evalhouse resume RUN` 会重新请求失败或尚未执行的判定。",
            "补全数据集缺少的内容：答案、标准答案、检索到的上下文。",
            "计算常用指标，使陈述得到分类和归因。",
        ),
    ),
    "judge_suspect": Advice(
        name="评判可疑",
        meaning="判定互相矛盾，或评判模型的多次投票不一致。",
        remedies=(
            "查看判定：`evalhouse lineage RUN SAMPLE`。",
            "用 `--votes 3` 多次投票，或换用更强的评判模型。",
            "按自己的文本调整评判提示词（`--prompts DIR`），并加入自己的示例。",
        ),
    ),
    "ground_truth_doubtful": Advice(
        name="标准答案存疑",
        meaning="上下文支持该答案，但标准答案没有这些内容，或说法不同。",
        remedies=(
            "请人对照上下文检查标准答案，予以补充或更正。",
            "看看标准答案写成之后知识库是否有变化。",
            "如果答案只是说得比要求的多，让提示词要求得更简洁。",
        ),
    ),
    "refused_although_supported": Advice(
        name="有依据却拒答",
        meaning="上下文里有答案，机器人却没有回答。",
        remedies=(
            "提示词：说明何时可以拒答（仅当上下文中什么都没有），并给出部分作答的示例。",
            "降低使机器人拒答的相似度阈值或安全阈值。",
            "生成设置：换用更能遵循指令的模型，为上下文留出更多空间。",
        ),
    ),
    "retrieval_missed": Advice(
        name="检索遗漏",
        meaning="知识库里有所需内容，但没有检索到。",
        remedies=(
            "改写查询：消解代词和前文指代，展开缩写，拆分多部分问题。",
            "更换向量模型：选用适合该语言和领域的模型，或同时使用关键词检索。",
            "检索更多结果（增大 k），再重排序。",
            "改变文档切分方式：按章节切分，每段带上标题。",
        ),
    ),
    "knowledge_base_lacks": Advice(
        name="知识库缺失",
        meaning="本应包含所需内容的文档已检索到，但其中没有。",
        remedies=(
            "补全知识库：新增或更新参考编号所指的文档。",
            "检查切分时是否丢失了相关段落（表格、列表、脚注）。",
            "如果本就不该期待知识库里有，请更正标准答案。",
        ),
    ),
    "not_in_contexts": Advice(
        name="上下文中没有",
        meaning="检索到的上下文都不含所需内容；无法判断知识库里是否有。",
        remedies=(
            "在知识库中查找缺少的陈述：没有的需要补充。",
            "知识库里有的就是没有检索到：改写查询，更换向量模型，检索更多结果。",
            "为数据集提供 `reference_context_ids`，evalhouse 就能区分这两种情况。",
        ),
    ),
    "ranked_too_low": Advice(
        name="排序过低",
        meaning="有上下文包含遗漏的内容，但排在没有帮助的上下文之后。",
        remedies=(
            "在交给模型之前，用交叉编码器对检索结果重排序。",
            "传入更少而更好的上下文，去掉重复的。",
            "混合关键词检索与向量检索，并考虑标题和日期的权重。",
        ),
    ),
    "hallucinated": Advice(
        name="与上下文不符的幻觉",
        meaning="答案中有错误且任何上下文都不支持的内容。",
        remedies=(
            "提示词：只根据上下文作答，注明出处，没有依据时如实说明。",
            "生成设置：降低温度，换用更忠实的模型。",
            "展示之前对照上下文检查答案，删去没有依据的句子。",
        ),
    ),
    "misled_by_contexts": Advice(
        name="被上下文误导",
        meaning="答案照搬了与标准答案无关的上下文。",
        remedies=(
            "重排序，并去掉低于阈值的上下文。",
            "按元数据过滤：产品、版本、日期、语言。",
            "提示词：只用能回答问题的内容。",
        ),
    ),
    "contexts_ignored": Advice(
        name="忽略上下文",
        meaning="靠前的上下文里有所需内容，答案却没有说到。",
        remedies=(
            "提示词：要求说出回答问题的每一个要点，并给出完整作答的示例。",
            "生成设置：提高输出长度上限，换用更强的模型。",
            "传入更少或更短的上下文，把最好的放在最前或最后。",
        ),
    ),
    "own_knowledge": Advice(
        name="凭自身知识作答",
        meaning="答案正确，但没有上下文支持：情况一变就会出错。",
        remedies=(
            "补全知识库或改进检索，使上下文包含这些内容。",
            "提示词：如果这是您想要的，要求只根据上下文作答。",
        ),
    ),
    "fine": Advice(name="正常", meaning="没有发现值得改进之处。", remedies=()),
}

ADVICE: Final[Mapping[Language, Mapping[Cause, Advice]]] = {"en": ENGLISH, "zh": CHINESE}
