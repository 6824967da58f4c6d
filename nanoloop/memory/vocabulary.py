"""Words that carry no search, and words that are one: what recall knows of languages.

Lists from grammar books, not from any conversation: they hold for every chat alike.
"""

from __future__ import annotations

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
"""Words a query does without, unless it has no others."""

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
"""The same where words are not set apart; the longest first."""

FUNCTION_SIGNS = frozenset(
    "的了是在我你您他她它们這这那有和与與也都就不没沒吗嗎呢吧啊呀么麼把被让對对给給跟从從到"
    "很还還要会會能可以过過着著之其于於而或个個些几幾谁誰哪啥请請"
    "はがをにのでともへやかねよなだてたしれるいうすくこそあり"
    "은는이가을를에의도로와과만요고서다"
)
"""Signs that mostly serve grammar: they count for less than others."""

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
"""What stemming can't see: went is go, children are a child, mom is mother."""

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
