"""Convert words to the form that the index uses, in any language."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_STOP = """
a about all also am an and any are as at be because been being but by can could did do does doing
done else ever for from get gets got had has have having he her hers him his how i if in into is
it its just let like me mine more most my no not now of off on or other our ours out over own
please said same say says she should so some such tell tells than that the their theirs them then
there these they this those to told too up us very was we were what when where which while who
whom whose why will with would yes you your yours am is are didn doesn don isn wasn weren hasn
haven hadn won wouldn couldn shouldn ain aren anything anyone something someone many much kind
type sort name thing things mention mentioned talk talked remember recall know knew
der die das den dem des ein eine einen einem einer und oder ist sind war waren wird hat habe haben
hatte ich du er sie es wir ihr mein meine dein deine sein seine mit von zu im in auf für an aus
bei nicht auch wie was wer wo wann warum welche welcher welches wieviel
le la les un une des du de et ou est sont était a ai as ont je tu il elle nous vous ils elles mon
ma mes ton ta tes son sa ses ce cette ces que qui quoi quand où comment pourquoi quel quelle
quels quelles combien dans sur pour par avec ne pas en au aux
el los las una unos unas y o es son era fue ha he han yo tú él ella nosotros ellos mi mis tu tus
su sus que qué quién cuándo dónde cómo cuál cuáles cuánto cuántos por para con sin no se lo del al
il lo gli i uno e sono ho hai io lui lei noi voi mio mia tuo tua suo sua che chi cosa quando dove
come perché quale quanto con per di da non si
os as um uma eu ele ela nós meu minha seu sua quem onde quando como qual quanto não em no na do da
het een en van ik jij hij zij wij mijn jouw zijn haar wat wie waar wanneer waarom hoe welke niet
"""
STOP_WORDS = frozenset(_STOP.split())
"""Words that a query ignores unless it has no other words."""

_PHRASES = """
为什么 為什麼 什么时候 什麼時候 什么 什麼 怎么样 怎麼樣 怎么 怎麼 怎样
哪里 哪裡 哪儿 哪个 哪個 哪些 哪位 哪天 哪年 哪一天 哪一年
多少 多久 多大 几个 几点 几号 几月 几岁 几次 是谁 谁的 请问 告诉我 记得 是不是
有没有 是否 一下 我们 你们 他们 她们 这个 那个 这些 那些 一个 的时候 以及 如何 何时 何地
いつ どこ だれ 誰 なに 何 なぜ どうして どの どんな いくつ いくら ですか ますか でしたか ましたか
でした ました です ます という について 教えて
언제 어디 누구 무엇 무슨 어떤 어떻게 얼마 몇 입니까 습니까 인가요 나요 했어 였어 이야
"""
PHRASES = tuple(sorted(set(_PHRASES.split()), key=len, reverse=True))
"""Phrases that a query ignores, in scripts without spaces; the longest come first."""

FUNCTION_SIGNS = frozenset(
    "的了是在我你您他她它们這这那有和与與也都就不没沒吗嗎呢吧啊呀么麼把被让對对给給跟从從到"
    "很还還要会會能可以过過着著之其于於而或个個些几幾谁誰哪啥请請"
    "はがをにのでともへやかねよなだてたしれるいうすくこそあり"
    "은는이가을를에의도로와과만요고서다"
)
"""Characters with a mostly grammatical function, which weigh less than others."""

_FORMS = """
arise arose arisen|awake awoke awoken|bear bore born borne|beat beaten|become became
begin began begun|bend bent|bind bound|bite bit bitten|bleed bled|blow blew blown
break broke broken|bring brought|build built|burn burnt|
buy bought purchase purchased|catch caught
choose chose chosen|come came|creep crept|deal dealt|dig dug|draw drew drawn|dream dreamt
drink drank drunk|drive drove driven|eat ate eaten|fall fell fallen|feed fed|feel felt
fight fought|find found|fly flew flown|forget forgot forgotten|forgive forgave forgiven
freeze froze frozen|give gave given|go went gone goes|grow grew grown|hang hung|hear heard
hide hid hidden|hold held|keep kept|kneel knelt|lead led|lean leant|learn learnt|leave left
lend lent|lie lay lain|light lit|lose lost|make made|mean meant|meet met|pay paid
ride rode ridden|ring rang rung|rise rose risen|run ran|see saw seen|seek sought|sell sold
send sent|sew sewn|shake shook shaken|shine shone|shoot shot|show shown|shrink shrank shrunk
sing sang sung|sink sank sunk|sit sat|sleep slept|slide slid|speak spoke spoken|speed sped
spend spent|spin spun|spring sprang sprung|stand stood|steal stole stolen|stick stuck
strike struck|swear swore sworn|sweep swept|swim swam swum|swing swung|take took taken
teach taught|tear tore torn|think thought|throw threw thrown|understand understood
wake woke woken|wear wore worn|weave wove woven|weep wept|win|wind wound|write wrote written
child children|man men|woman women|person people persons|foot feet|tooth teeth|mouse mice
wife wives|life lives|knife knives|leaf leaves|half halves|good better best|bad worse worst
mother mom mum mommy mummy|father dad daddy|grandmother grandma|grandfather grandpa
photograph photo photos photographs|television tv|refrigerator fridge|bicycle bike bikes
mathematics math maths|laboratory lab labs|advertisement ad ads|movie film movies films
picture pic pics pictures|vacation holiday vacations holidays
january jan|february feb|april apr|august aug|september sept sep|october oct|november nov
december dec|2 two|3 three|4 four|5 five|6 six|7 seven|8 eight|9 nine|10 ten|11 eleven|12 twelve
1 first|2 second|20 twenty|30 thirty|40 forty|50 fifty|100 hundred
"""
ONE_FORM = {
    form: forms.split()[0]
    for forms in _FORMS.replace("\n", "|").split("|")
    for form in forms.split()[1:]
}
"""Forms that stemming misses: "went" becomes "go", "children" becomes "child" and so on."""

MONTHS = {
    name: number
    for number, name in enumerate(
        [
            "january",
            "february",
            "march",
            "april",
            "may",
            "june",
            "july",
            "august",
            "september",
            "october",
            "november",
            "december",
        ],
        start=1,
    )
}
FIRST_PERSON = frozenset(
    ["i", "my", "me", "mine", "myself", "我", "ich", "mein", "je", "mon", "yo", "mi", "私", "僕"]
)
SECOND_PERSON = frozenset(["you", "your", "yours", "yourself", "你", "您"])


MOST_WORDS = 32
"""The maximum number of words in a query to search for, starting with the first."""

_UNSPACED = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uac00-\ud7a3\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U0003ffff"
)
"""Scripts without spaces, and Korean with its attached particles; each character pair is a word."""
_LETTER = rf"[^\W_{_UNSPACED}]"
_PIECE = re.compile(rf"([{_UNSPACED}]+)|(\d+(?:[.:/-]\d+)+)|({_LETTER}+(?:['\u2019]{_LETTER}+)*)")
_NUMBER_AND_SIGN = re.compile(rf"(\d+)([{_UNSPACED}])")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
_CLITICS = frozenset({"ll", "re", "ve"})
_HIRAGANA = re.compile("[\u3040-\u309f]+")
_PHRASE = re.compile("|".join(map(re.escape, PHRASES)))

_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|since|"
    r"(?:last|next|this|past) (?:\w+ )?(?:night|day|week|weekend|month|year|"
    r"spring|summer|fall|autumn|winter|\w+day)|"
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|(?:19|20)\d\d|\d+ ?[ap]m|\d+:\d\d|recently|"
    rf"{'|'.join(name for name in MONTHS if name not in {'may', 'march'})})\b"
    r"|[昨今明前后後][天日年]|[上下这這本][个個]?[周月週]|去年|星期|[周週][一二三四五六日末]"
    r"|\d[年月日号號点點]"
)
_AMOUNT = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|dozen|couple|"
    r"few|several|once|twice)\b"
    r"|[一二两三四五六七八九十百千万][个個位次只岁歲年月天元块小]"
)
_ASKS_TIME = re.compile(
    r"\bwhen\b|\bwhat (?:date|day|month|year|time)\b|\bwann\b|\bquand\b|\bcuándo\b|"
    r"什么时候|什麼時候|何时|几点|几号|几月|哪天|哪年|哪一天|哪一年|日期|いつ|何時|何日|언제"
)
_ASKS_AMOUNT = re.compile(
    r"\bhow (?:many|much|long|old|often|far|tall|big)\b|\bwie ?viele?\b|\bcombien\b|\bcuánt|"
    r"多少|几|幾|多久|多大|いくつ|いくら|何人|얼마|몇"
)
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？\n]*")  # noqa: RUF001 - Chinese punctuation
_YEAR = re.compile(r"(?<!\d)((?:19|20)\d\d)(?!\d)")
_MONTH_SIGN = re.compile(r"(?<!\d)(1[0-2]|0?[1-9])[月월]")

TELLS_TIME, TELLS_AMOUNT, ONLY_ASKS, IS_TOOL = 1, 2, 4, 8
"""Marks that are stored for text in addition to its words."""


def plain(text: str) -> str:
    """Normalise text for comparison: one character width, lower case, no accents."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKC", text).casefold()
    return "".join(map(_unaccented, text))


@lru_cache(maxsize=4096)
def _unaccented(sign: str) -> str:
    if sign < "\u00c0" or sign > "\u1eff":  # kana and Hangul must not be decomposed
        return sign
    parts = unicodedata.normalize("NFD", sign)
    return "".join(part for part in parts if not unicodedata.combining(part)) or sign


def words_of(text: str) -> list[str]:
    """Return the text's distinct words in order; without spaces, characters and pairs of them."""
    return list(dict.fromkeys(_words(_THOUSANDS.sub("", plain(text)))))


def _words(text: str) -> Iterator[str]:
    for run, numbers, word in _PIECE.findall(text):
        if run:
            yield from run
            yield from pairs_of(run)
        elif numbers:
            pieces = re.split("[.:/-]", numbers)
            yield from pieces
            yield "x".join(pieces)
        else:
            yield from _forms(word)
    if not text.isascii():
        yield from ("".join(pair) for pair in _NUMBER_AND_SIGN.findall(text))


def pairs_of(run: str) -> list[str]:
    """Return all pairs of adjacent characters."""
    return [run[i : i + 2] for i in range(len(run) - 1)]


@lru_cache(maxsize=16_384)
def _forms(word: str) -> tuple[str, ...]:
    """Return the base forms of a word, without any clitic attached by an apostrophe."""
    parts = re.split("['\u2019]", word)
    if len(parts) > 1:
        parts = [part for part in parts if len(part) > 1 and part not in _CLITICS]
    return tuple(_one_form(part) for part in parts)


def _one_form(word: str) -> str:
    if ordinal := _ORDINAL.fullmatch(word):
        return ordinal[1]
    return ONE_FORM.get(word, word)


def marks_of(text: str) -> int:
    """Return the text's marks: whether it mentions a time or an amount, or only asks a question."""
    text = plain(text)
    marks = TELLS_TIME if _TIME.search(text) else 0
    marks |= TELLS_AMOUNT if _AMOUNT.search(text) else 0
    return marks | (ONLY_ASKS if _only_asks(text) else 0)


def _only_asks(text: str) -> bool:
    """Return True if the text consists of questions, apart from a word or two."""
    if "?" not in text:
        return False
    told = (part for part in _SENTENCE.findall(text) if "?" not in part)
    return not any(len(part.split()) > 3 or len(words_of(part)) > 8 for part in told)  # noqa: PLR2004 - greetings are shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A parsed search query."""

    words: dict[str, float]
    """The weight of each word."""
    names: frozenset[str]
    """All words of the query, any of which may be a speaker's name."""
    wants: int = 0
    """The marks that an answer should have: `TELLS_TIME`, `TELLS_AMOUNT`."""
    month: int = 0
    year: int = 0
    roles: frozenset[str] = frozenset()
    """The roles that "I" and "you" refer to."""

    @classmethod
    def of(cls, text: str) -> Query:
        """Parse a question or a list of words."""
        text = _THOUSANDS.sub("", plain(text))
        every = list(dict.fromkeys(_words(text)))
        counted = dict(list(_counted(text).items())[:MOST_WORDS])
        year, signed = _YEAR.search(text), _MONTH_SIGN.search(text)
        spoken = {part for word in text.split() for part in re.split(r"\W", word)} | set(text)
        return cls(
            words=counted or dict.fromkeys(every[:MOST_WORDS], 1.0),
            names=frozenset(every),
            wants=_wants(text),
            month=int(signed[1]) if signed else _month(every),
            year=int(year[1]) if year else 0,
            roles=_roles(spoken),
        )


def _counted(text: str) -> dict[str, float]:
    """Return the words worth searching for, with their weights."""
    found: dict[str, float] = {}
    for run, numbers, word in _PIECE.findall(_PHRASE.sub(" ", text)):
        if run:
            for piece, counts in _signs(run):
                found[piece] = max(counts, found.get(piece, 0.0))
        elif word not in STOP_WORDS:
            found |= dict.fromkeys(_words(numbers or word), 1.0)
    return {word: counts for word, counts in found.items() if word not in STOP_WORDS}


def _signs(run: str) -> Iterator[tuple[str, float]]:
    """Give pairs the most weight, single characters a little, and grammatical ones hardly any."""
    for pair in pairs_of(run):
        served = sum(sign in FUNCTION_SIGNS for sign in pair)
        yield pair, (1.0, 0.35, 0.1)[served] if not _HIRAGANA.fullmatch(pair) else 0.3
    single = 1.0 if len(run) == 1 else 0.25
    for sign in run:
        if sign not in FUNCTION_SIGNS:
            yield sign, single


def _wants(text: str) -> int:
    time = TELLS_TIME if _ASKS_TIME.search(text) else 0
    return time | (TELLS_AMOUNT if _ASKS_AMOUNT.search(text) else 0)


def _month(words: list[str]) -> int:
    return next((MONTHS[word] for word in words if word in MONTHS), 0)


def _roles(words: set[str]) -> frozenset[str]:
    roles = (("user", FIRST_PERSON), ("assistant", SECOND_PERSON))
    return frozenset(role for role, pronouns in roles if words & pronouns)
