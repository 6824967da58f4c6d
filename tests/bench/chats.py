"""Made-up long chats with questions and the turns that answer them: English and Chinese.

Honest in this: a question uses other words than its answer where people would, both speakers touch
the same topics, most turns are small talk, and short answers make sense only after their question.
It is no replacement for real talk; it compares variants under the same conditions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

Turn = tuple[str, str]
"""Who, and what."""


@dataclass(slots=True)
class Chat:
    """A conversation, and questions with the places of the turns that answer them."""

    turns: list[Turn] = field(default_factory=list)
    questions: list[tuple[str, list[int]]] = field(default_factory=list)

    def say(self, who: str, text: str) -> int:
        self.turns.append((who, text))
        return len(self.turns) - 1


SLOTS = {
    "craft": [
        "pottery",
        "painting",
        "knitting",
        "woodworking",
        "photography",
        "calligraphy",
        "sewing",
        "origami",
    ],
    "pet": ["puppy", "kitten", "parrot", "hamster", "turtle", "rabbit"],
    "food": ["lasagna", "curry", "ramen", "pancakes", "dumplings", "paella", "chili"],
    "city": ["Lisbon", "Kyoto", "Denver", "Oslo", "Toronto", "Marrakesh", "Dublin", "Lima"],
    "sport": ["tennis", "climbing", "rowing", "karate", "yoga", "basketball", "surfing"],
    "book": ["Dune", "Middlemarch", "The Hobbit", "Beloved", "Emma", "Ulysses"],
    "kin": ["sister", "brother", "cousin", "aunt", "uncle", "nephew", "grandmother"],
    "thing": ["guitar", "camera", "bike", "telescope", "laptop", "violin", "tent"],
    "day": ["Monday", "Tuesday", "Thursday", "Saturday", "Sunday"],
    "job": ["nurse", "teacher", "baker", "engineer", "lawyer", "gardener", "pilot"],
}
FACTS = [
    (
        "I finally signed up for a {craft} class last {day}!",
        "When did {who} join a {craft} course?",
    ),
    (
        "We took the kids to {city} and they had a blast.",
        "Where did {who} travel with the children?",
    ),
    ("I just got a new {thing}, it was on sale.", "What did {who} buy recently, a {thing}?"),
    ("My {kin} works as a {job} over in {city} now.", "What is the job of {who}'s {kin}?"),
    (
        "I made {food} from scratch for everyone yesterday.",
        "What meal did {who} cook, was it {food}?",
    ),
    (
        "I adopted a {pet} and named it after a {food} dish, silly right?",
        "Which pets does {who} have? A {pet}?",
    ),
    (
        "Been reading {book} every night, I can't put it down.",
        "What book is {who} reading, {book}?",
    ),
    ("My {kin} taught me {sport} when I was ten.", "Who taught {who} how to do {sport}?"),
    (
        "I won second place in the {sport} contest last weekend.",
        "What prize did {who} win in the {sport} competition?",
    ),
    ("I'm thinking of moving to {city} because of work.", "Why does {who} want to move to {city}?"),
    ("Lost my {thing} on the train, I'm so upset.", "What happened to {who}'s {thing}?"),
    (
        "I ran a charity bake sale and we raised 400 dollars for the shelter.",
        "How much money did {who} raise for charity?",
    ),
    ("The doctor says I should stop {sport} because of my knee.", "Why did {who} quit {sport}?"),
    ("I grew up in {city} before my parents split up.", "Where did {who} grow up?"),
]
ASKED = [
    (
        "Have you ever been to {city}?",
        "Yes, twice, with my {kin} in 2019.",
        "When did {who} visit {city}?",
    ),
    (
        "How did the {sport} game end?",
        "We lost by three points, sadly.",
        "What was the result of {who}'s {sport} match?",
    ),
    (
        "Who gave you that {thing}?",
        "My {kin} did, for my birthday.",
        "From whom did {who} receive the {thing}?",
    ),
    (
        "What do you like best about {craft}?",
        "It calms me down after a long shift.",
        "Why does {who} enjoy {craft}?",
    ),
]
SMALL = [
    "Hey {other}! How are you doing?",
    "That's great, {other}! I'm so happy for you.",
    "Wow, that sounds amazing. Tell me more!",
    "Thanks {other}, that means a lot to me.",
    "I know what you mean, it's been a busy week.",
    "Haha, that is so true.",
    "What have you been up to lately, {other}?",
    "I hope you have a great day!",
    "Do you still enjoy {craft}?",
    "I love {sport} too, we should go together!",
    "My friend went to {city} and loved it.",
    "{food} is one of my favorite meals.",
    "Have you seen the new movie about {city}?",
    "It's always good to spend time with family.",
    "{craft} takes a lot of patience, I could never do it.",
    "How is your {kin}?",
    "A {pet} would be lovely but I have no time.",
    "Is {book} worth reading?",
    "I've wanted a {thing} for years.",
    "Work has been crazy, but I'm learning a lot.",
]
ZH_SLOTS = {
    "kin": ["姐姐", "哥哥", "表弟", "姑姑", "舅舅", "同事", "邻居", "室友"],
    "name": ["王芳", "李伟", "张敏", "刘洋", "陈静", "赵磊", "孙丽", "周强"],
    "city": ["杭州", "成都", "西安", "厦门", "昆明", "青岛", "南京"],
    "food": ["火锅", "饺子", "红烧肉", "酸菜鱼", "小笼包", "麻辣烫"],
    "hobby": ["书法", "摄影", "游泳", "爬山", "吉他", "围棋", "瑜伽"],
    "job": ["护士", "律师", "会计", "厨师", "工程师", "老师"],
    "date": ["3月5日", "6月18日", "9月21日", "11月2日", "12月30日"],
}
ZH_FACTS = [
    ("我{kin}叫{name},今年三十二岁了。", "我{kin}叫什么名字?"),
    ("{name}的生日是{date},别忘了提醒我买礼物。", "{name}什么时候过生日?"),
    ("{name}在{city}的一家医院当{job},经常上夜班。", "{name}是做什么工作的?"),
    ("上周末我和{kin}一起去{city}玩了三天,住在湖边。", "我和{kin}去过哪个城市旅游?"),
    ("我最近在学{hobby},每个星期三晚上有课。", "我哪天晚上上{hobby}课?"),
    ("昨天做了{food},结果盐放多了。", "我做{food}的时候出了什么问题?"),
    ("{kin}送了我一台相机,说是庆祝我升职。", "谁送给我相机,为什么?"),
    ("医生说我膝盖不好,最好别再{hobby}了。", "医生为什么不让我{hobby}?"),
    ("{name}的电话换了,新号码的尾号是{date}。", "{name}现在的手机号是多少?"),
]
ZH_ASKED = [
    ("你去过{city}吗?", "去过两次,都是出差。", "我去{city}是因为什么?"),
    ("{hobby}学得怎么样了?", "还行,老师说进步挺快。", "老师怎么评价我的{hobby}?"),
]
ZH_SMALL = [
    "今天天气真不错。",
    "好的,我记住了。",
    "听起来很有意思,再多说一点吧!",
    "哈哈,确实是这样。",
    "最近工作有点忙,不过还好。",
    "你喜欢{hobby}吗?",
    "{city}的风景很美,值得去看看。",
    "{food}是我最喜欢吃的。",
    "周末打算做什么?",
    "{kin}最近身体怎么样?",
    "谢谢你的关心。",
    "我也想学{hobby},可是没有时间。",
    "{name}昨天给我打电话了。",
    "那太好了,恭喜你!",
    "朋友推荐我去{city}玩。",
    "生日礼物还没想好买什么。",
    "晚上吃{food}怎么样?",
]


NAMES = ["Ruth", "Walter", "Nadia", "Oscar", "Ingrid", "Felix", "Carmen", "Boris"]
HOPS = (
    "My {kin} {name} came by last night.",
    [
        "{name} works as a {job} these days.",
        "{name} moved to {city} in spring.",
        "{name} gave me a {thing} for my birthday.",
        "{name} is really into {sport}.",
    ],
    [
        "What is the job of {who}'s {kin}?",
        "Where does {who}'s {kin} live now?",
        "What present did {who} get from the {kin}?",
        "Which sport does {who}'s {kin} do?",
    ],
)
ZH_HOPS = (
    "我{kin}叫{name},我们从小就认识。",
    [
        "{name}最近当上了{job}。",
        "{name}搬到{city}去住了。",
        "{name}的生日是{date}。",
        "{name}特别喜欢{hobby}。",
    ],
    [
        "我{kin}的职业是什么?",
        "我{kin}现在住在哪个城市?",
        "我{kin}是哪天出生的?",
        "我{kin}的爱好是什么?",
    ],
)
"""Who is meant stands in one turn, what is asked for in another that only gives the name."""


def english(seed: int, *, turns: int = 600) -> Chat:
    """Two people who talk for months."""
    names = random.Random(seed).sample(["Caroline", "Melanie", "Jon", "Gina", "Nate", "Maria"], 2)
    return _chat(seed, names, SLOTS, (FACTS, ASKED, SMALL, HOPS), turns)


def chinese(seed: int, *, turns: int = 300) -> Chat:
    """Someone who tells an assistant about their days."""
    return _chat(
        seed, ["user", "assistant"], ZH_SLOTS, (ZH_FACTS, ZH_ASKED, ZH_SMALL, ZH_HOPS), turns
    )


def _chat(seed, names, slots, kinds, turns) -> Chat:  # type: ignore[no-untyped-def]
    pick, chat = random.Random(seed), Chat()
    facts, asked, small, hops = kinds
    called = list(zip(slots["kin"], slots.get("name", NAMES), strict=False))
    while len(chat.turns) < turns:
        who, other = pick.sample(names, 2) if names[0] != "user" else names
        values = {name: pick.choice(among) for name, among in slots.items()}
        about = {"who": who, "other": other, **values}
        kind = pick.random()
        if kind < 0.15:
            told, question = pick.choice(facts)
            text = told.format(**about)
            if pick.random() < 0.5:
                text = f"{pick.choice(small).format(**about)} {text}"
            chat.questions.append((question.format(**about), [chat.say(who, text)]))
        elif kind < 0.2:
            ask, reply, question = pick.choice(asked)
            chat.say(other, ask.format(**about))
            chat.questions.append(
                (question.format(**about), [chat.say(who, reply.format(**about))])
            )
        elif kind < 0.24:
            about["kin"], about["name"] = pick.choice(called)
            number = pick.randrange(len(hops[1]))
            if pick.random() < 0.5:
                chat.say(who, hops[0].format(**about))
            else:
                place = chat.say(who, hops[1][number].format(**about))
                chat.questions.append((hops[2][number].format(**about), [place]))
        else:
            who, other = pick.sample(names, 2)
            chat.say(who, pick.choice(small).format(**{**about, "other": other}))
    return chat
