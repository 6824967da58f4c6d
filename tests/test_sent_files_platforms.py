"""Files with answers on the platforms' stand-ins, and each kind of refusal."""

import pytest
from telegram.error import NetworkError

from nanoloop.channels.telegram.api import explained
from nanoloop.errors import Declined
from nanoloop.testing.channels.stage import comes_to, open_to_all
from tests.sent_files import PDF, PICTURE, SOUND, bot_with
from tests.servers.discord import DiscordServer
from tests.servers.slack import BOT as SLACK_BOT
from tests.servers.slack import SlackServer
from tests.servers.telegram import BOT, Refusal
from tests.stages.discord import DiscordStage
from tests.stages.matrix import matrix_stage
from tests.stages.slack import SlackStage
from tests.stages.telegram import telegram

REFUSED = "The file report.pdf is missing: it is not accepted here."


@pytest.fixture
async def on_telegram():
    async with telegram() as stage:
        yield stage


@pytest.fixture
async def on_discord(tmp_path):
    async with DiscordServer().serving() as server:
        yield DiscordStage(server, tmp_path)


@pytest.fixture
async def on_slack(tmp_path):
    async with SlackServer().serving() as server:
        yield SlackStage(server, tmp_path)


def sizes(files):
    return [len(data) for data in files]


async def posted_on_telegram(stage, chat):
    posts = stage.server.chats[int(chat)].values()
    return [
        (post.text, sizes([post.file] if post.file else []))
        for post in posts
        if post.sender == BOT["id"]
    ]


async def posted_on_discord(stage, chat):
    said = stage.world.messages.get(int(chat), {}).values()
    ours = [message for message in said if message.author_id == stage.world.bot_user.id]
    return [(m.content, [a["size"] for a in m.attachments]) for m in ours]


async def posted_on_slack(stage, chat):
    said = [m for m in stage.server.channels[chat].values() if m["user"] == SLACK_BOT]
    return [
        (m["text"], sizes(stage.server.uploads[file["id"]] for file in m.get("files", ())))
        for m in said
    ]


async def comes(posted, stage, folder, *results, wanted, **more):
    """Ask, and wait until the bot has posted this."""
    (chat, ann), *_ = await stage.people(1)
    rules = open_to_all(stream=False)
    async with bot_with(stage.platform(), folder, *results, rules=rules, **more):
        await stage.say(chat, "make it", sender=ann)
        await comes_to(lambda: posted(stage, chat), wanted)


async def test_telegram_shows_each_sort_as_what_it_is_and_the_text_with_it(on_telegram, tmp_path):
    await comes(
        posted_on_telegram,
        on_telegram,
        tmp_path,
        [PDF, PICTURE, SOUND, PICTURE, PICTURE],
        wanted=[
            ("Here it is.", [len(PDF.content)]),
            ("[photo]", [len(PICTURE.content)]),
            ("[voice]", [len(SOUND.content)]),
            ("[photo of an album]", [len(PICTURE.content)]),
            ("[photo of an album]", [len(PICTURE.content)]),
        ],
    )


async def test_a_text_too_long_for_telegram_to_go_with_a_file_comes_behind_it(
    on_telegram, tmp_path
):
    answer = "word " * 300
    wanted = [("[report.pdf]", [len(PDF.content)]), (answer.strip(), [])]
    await comes(posted_on_telegram, on_telegram, tmp_path, PDF, wanted=wanted, answer=answer)


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(400, "Bad Request: file is too big"),
        Refusal(413, "Request Entity Too Large"),
        Refusal(403, "Forbidden: not enough rights to send documents to the chat"),
    ],
)
async def test_a_file_that_telegram_refuses_costs_a_sentence(on_telegram, tmp_path, refusal):
    on_telegram.server.faults.file_refusal = refusal
    wanted = [(f"Here it is.\n\n{REFUSED}", [])]
    await comes(posted_on_telegram, on_telegram, tmp_path, PDF, wanted=wanted)


async def test_discord_shows_files_in_the_message_of_the_text(on_discord, tmp_path):
    await comes(
        posted_on_discord,
        on_discord,
        tmp_path,
        [PICTURE, PICTURE, PDF, SOUND],
        wanted=[
            ("Here it is.", [len(PICTURE.content), len(PICTURE.content)]),
            ("", [len(PDF.content)]),
            ("", [len(SOUND.content)]),
        ],
    )


async def test_a_file_that_discord_refuses_costs_a_sentence(on_discord, tmp_path):
    on_discord.server.refuses_files = True
    wanted = [(f"Here it is.\n\n{REFUSED}", [])]
    await comes(posted_on_discord, on_discord, tmp_path, PDF, wanted=wanted)


async def test_slack_shows_files_before_the_text(on_slack, tmp_path):
    await comes(
        posted_on_slack,
        on_slack,
        tmp_path,
        [PICTURE, PICTURE, PDF, SOUND],
        wanted=[
            ("", [len(PICTURE.content), len(PICTURE.content)]),
            ("", [len(PDF.content)]),
            ("", [len(SOUND.content)]),
            ("Here it is.", []),
        ],
    )


@pytest.mark.parametrize(
    ("error", "more"),
    [("missing_scope", {"needed": "files:write"}), ("file_upload_size_restricted", {})],
)
async def test_a_file_that_slack_refuses_costs_a_sentence(on_slack, tmp_path, error, more):
    on_slack.server.refuse("files.getUploadURLExternal", error, times=9, **more)
    wanted = [(f"Here it is.\n\n{REFUSED}", [])]
    await comes(posted_on_slack, on_slack, tmp_path, PDF, wanted=wanted)


@pytest.fixture
async def on_matrix(synapse, tmp_path):
    async with matrix_stage(synapse, tmp_path) as stage:
        yield stage


async def posted_on_matrix(stage, room):
    owner = stage._owners[room]
    await owner.look()
    events = owner.events.get(room, {}).values()
    said = [e["content"] for e in events if e["sender"] == stage.bot.id and "body" in e["content"]]
    return [(c["msgtype"], c["body"], c.get("info", {}).get("size")) for c in said]


async def test_matrix_shows_the_text_with_its_first_file(on_matrix, tmp_path):
    await comes(
        posted_on_matrix,
        on_matrix,
        tmp_path,
        [PDF, PICTURE, SOUND],
        wanted=[
            ("m.file", "Here it is.", len(PDF.content)),
            ("m.image", "chart.png", len(PICTURE.content)),
            ("m.audio", "said.ogg", len(SOUND.content)),
        ],
    )


def test_what_telegram_says_of_a_large_file_is_no_passing_failure():
    with pytest.raises(Declined), explained():
        raise NetworkError("Request Entity Too Large (413)")


async def test_a_file_comes_once_when_telegram_fails_before_it(on_telegram, tmp_path):
    on_telegram.server.faults.lost = 2
    wanted = [("Here it is.", [len(PDF.content)])]
    await comes(posted_on_telegram, on_telegram, tmp_path, PDF, wanted=wanted)
