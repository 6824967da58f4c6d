"""Telegram's Bot API on this machine, as its documents say, with the faults of a bad day."""

import json
import math
import re
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from html import unescape
from itertools import count
from urllib.parse import parse_qsl

import anyio
import httpx
from anyio.streams.buffered import BufferedByteReceiveStream

from nanoloop.channels.kit.markdown import utf16

TOKEN = "123456:stand-in-Token_of-tests"
BOT = {"id": 123456, "is_bot": True, "first_name": "Bot", "username": "test_bot"}
LIMIT = 4096
BATCH = 100
SUPERGROUPS = -(10**12)
"""Below this a chat is one."""
FILES = ("sendphoto", "sendaudio", "sendvoice", "senddocument", "sendmediagroup")
SENDING = ("sendmessage", "editmessagetext", *FILES)


class TelegramServer:
    """Chats that outlast every bot, and one bot's way to them."""

    def __init__(self):
        self.chats = defaultdict(dict)
        """What each chat shows: posts by id."""
        self.faults = Faults()
        self.typing = Counter()
        self.calls = Counter()
        self.answered = []
        """The ids of the pressed buttons that wait no more."""
        self.threads = defaultdict(set)
        self.files = {}
        self.moved = {}
        self.webhook = None
        self.webhook_error = None
        self.url = ""
        self.pending = {}
        """Updates by their ids, until they are confirmed."""
        self._updates = count(900_001)
        self._messages = defaultdict(lambda: count(1))
        self.news = anyio.Event()
        self._poll = None
        self._cut = anyio.Event()
        self._sent = defaultdict(list)
        self._http = HttpServer(self._answer)
        self._bringer = Bringer(self)

    @asynccontextmanager
    async def running(self):
        """Serve on a free port."""
        async with anyio.create_task_group() as group:
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            self.url = f"http://127.0.0.1:{port}"
            group.start_soon(self._http.serve, listener)
            group.start_soon(self._bringer.bring)
            yield self
            group.cancel_scope.cancel()

    # What people do

    def next_message(self, chat):
        """The number of the next message: a supergroup counts its own, all others are counted."""
        return next(self._messages[chat if chat < SUPERGROUPS else 0])

    def migrate(self, old, new):
        """Make a supergroup of a group."""
        self.moved[old], self.chats[new] = new, {}

    def tell(self, kind, message):
        """Have the bot told of a message; returns the update."""
        update = {"update_id": next(self._updates), kind: message}
        self.pending[update["update_id"]] = update
        self._wake()
        return update

    def press(self, message, data, sender):
        """Have the bot told of a pressed button; returns the update."""
        query = {"id": str(4_000_000 + next(self._updates)), "from": sender, "chat_instance": "1"}
        return self.tell("callback_query", query | {"message": message, "data": data})

    def cut(self):
        """Cut polls in the middle, and what rests."""
        self._http.cut_resting()
        self._cut.set()
        self._cut = anyio.Event()

    def _wake(self):
        self.news.set()
        self.news = anyio.Event()

    # What a bot does

    async def _answer(self, asked):
        _, of, *rest = asked.path.split("/")
        if of == "file":
            return 200, self.files[rest[-1]]
        method = rest[0].lower()
        self.calls[method] += 1
        try:
            self._fail_first(of, method)
            result = await getattr(self, f"_{method}")(asked)
            self._fail_then(method)
        except Refusal as no:
            said = {"ok": False, "error_code": no.code, "description": no.words}
            return no.code, said | ({"parameters": no.parameters} if no.parameters else {})
        return 200, {"ok": True, "result": result}

    def _fail_first(self, of, method):
        faults = self.faults
        if of != f"bot{TOKEN}" or faults.refused:
            raise Refusal(401, "Unauthorized")
        if faults.failing:
            faults.failing -= 1
            raise Refusal(502, "Bad Gateway")
        if method in FILES and faults.file_refusal:
            raise faults.file_refusal
        if method not in SENDING:
            return
        if faults.limited:
            faults.limited -= 1
            self._limit(faults.seconds)
        if faults.lost:
            faults.lost -= 1
            if faults.lost % 2:
                raise Refusal(500, "Internal Server Error")
            raise Cut

    def _fail_then(self, method):
        if self.faults.unconfirmed and method in SENDING:
            self.faults.unconfirmed -= 1
            raise Cut

    def _limit(self, seconds):
        seconds = max(1, math.ceil(seconds))
        raise Refusal(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)

    async def _getme(self, _):
        return BOT | {"can_join_groups": True, "can_read_all_group_messages": False}

    async def _getupdates(self, asked):
        if self.webhook:
            raise Refusal(409, "Conflict: can't use getUpdates method while webhook is active")
        for update in [*self.pending]:
            if update < int(asked.values.get("offset", 0)):
                del self.pending[update]
        if self._poll is not None:
            self._poll.set()  # the older one ends
        mine = self._poll = anyio.Event()
        with anyio.move_on_after(int(asked.values.get("timeout", 0))):
            while not self.pending:
                await self._something(mine)
        return [*self.pending.values()][:BATCH]

    async def _something(self, mine):
        """Wait for news, the end of this poll, or of its connection."""
        cut = self._cut
        async with anyio.create_task_group() as group:
            for event in (self.news, mine, cut):
                group.start_soon(self._first, event, group.cancel_scope)
        if cut.is_set():
            raise Cut
        if mine.is_set():
            raise Refusal(
                409,
                "Conflict: terminated by other getUpdates request; "
                "make sure that only one bot instance is running",
            )

    async def _first(self, event, scope):
        await event.wait()
        scope.cancel()

    async def _sendmessage(self, asked):
        return self._post(asked, self._text(asked))

    async def _sendphoto(self, asked):
        _, data = asked.files["photo"]
        if not data.startswith((b"\x89PNG", b"\xff\xd8")):
            raise Refusal(400, "Bad Request: IMAGE_PROCESS_FAILED")
        return self._post(asked, self._caption(asked.values) or "[photo]", data)

    async def _senddocument(self, asked):
        name, data = asked.files["document"]
        return self._post(asked, self._caption(asked.values) or f"[{name}]", data)

    async def _sendaudio(self, asked):
        name, data = asked.files["audio"]
        return self._post(asked, self._caption(asked.values) or f"[music {name}]", data)

    async def _sendvoice(self, asked):
        _, data = asked.files["voice"]
        if not data.startswith(b"OggS"):
            raise Refusal(400, "Bad Request: VOICE_PROCESS_FAILED")
        return self._post(asked, self._caption(asked.values) or "[voice]", data)

    async def _sendmediagroup(self, asked):
        told = []
        for item in json.loads(asked.values["media"]):
            _, data = asked.files[item["media"].removeprefix("attach://")]
            text = self._caption(item) or f"[{item['type']} of an album]"
            told.append(self._post(asked, text, data))
        return told

    def _caption(self, values):
        if not (text := values.get("caption", "")):
            return ""
        text = self._parsed(text) if "parse_mode" in values else text
        if utf16(text) > 1024:
            raise Refusal(400, "Bad Request: message caption is too long")
        return text

    async def _editmessagetext(self, asked):
        chat = self._chat(asked)
        post = self.chats[chat].get(int(asked.values["message_id"]))
        if post is None:
            raise Refusal(400, "Bad Request: message to edit not found")
        if post.sender != BOT["id"]:
            raise Refusal(400, "Bad Request: message can't be edited")
        text = self._text(asked)
        self._count(chat)
        if text == post.text and self._buttons(asked) == post.buttons:
            raise Refusal(
                400,
                "Bad Request: message is not modified: specified new message content and reply "
                "markup are exactly the same as a current content",
            )
        post.text, post.edits = text, post.edits + 1
        post.buttons = self._buttons(asked)
        return self._told(chat, post)

    async def _answercallbackquery(self, asked):
        self.answered.append(asked.values["callback_query_id"])
        return True

    async def _deletemessage(self, asked):
        if self.chats[self._chat(asked)].pop(int(asked.values["message_id"]), None) is None:
            raise Refusal(400, "Bad Request: message to delete not found")
        return True

    async def _sendchataction(self, asked):
        self.typing[self._chat(asked)] += 1
        return True

    async def _getfile(self, asked):
        name = asked.values["file_id"]
        if name not in self.files:
            raise Refusal(400, "Bad Request: invalid file_id")
        return {"file_id": name, "file_unique_id": name, "file_path": f"documents/{name}"}

    async def _setwebhook(self, asked):
        self.webhook = (asked.values["url"], asked.values["secret_token"])
        self._wake()
        return True

    async def _deletewebhook(self, _):
        self.webhook = None
        return True

    async def _getwebhookinfo(self, _):
        said = {"url": self.webhook[0] if self.webhook else "", "has_custom_certificate": False}
        if self.webhook_error:
            said |= {"last_error_date": math.ceil(time.time()) + 1}
            said |= {"last_error_message": self.webhook_error}
        return said | {"pending_update_count": len(self.pending)}

    # The rules

    def _chat(self, asked):
        chat = int(asked.values["chat_id"])
        if chat in self.moved:
            raise Refusal(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
                migrate_to_chat_id=self.moved[chat],
            )
        if chat in self.faults.blocked:
            raise Refusal(403, "Forbidden: bot was blocked by the user")
        if chat not in self.chats:
            raise Refusal(400, "Bad Request: chat not found")
        return chat

    def _text(self, asked):
        text = asked.values["text"]
        if "parse_mode" in asked.values:
            text = self._parsed(text)
        text = text.strip()
        if not text:
            raise Refusal(400, "Bad Request: message text is empty")
        if utf16(text) > LIMIT:
            raise Refusal(400, "Bad Request: message is too long")
        return text

    def _parsed(self, html):
        try:
            return shown("<x>" if self.faults.plain_only else html)
        except Malformed as no:
            raise Refusal(400, f"Bad Request: can't parse entities: {no}") from None

    def _post(self, asked, text, data=None):
        chat = self._chat(asked)
        thread = asked.values.get("message_thread_id")
        if thread is not None and int(thread) not in self.threads[chat]:
            raise Refusal(400, "Bad Request: message thread not found")
        reply = json.loads(asked.values.get("reply_parameters", "{}"))
        if reply and reply["message_id"] not in self.chats[chat]:
            if not reply.get("allow_sending_without_reply"):
                raise Refusal(400, "Bad Request: message to be replied not found")
            reply = {}
        self._count(chat)
        post = Post(
            id=self.next_message(chat),
            sender=BOT["id"],
            text=text,
            reply_to=reply.get("message_id"),
            thread=None if thread is None else int(thread),
            file=data,
            buttons=self._buttons(asked),
        )
        self.chats[chat][post.id] = post
        return self._told(chat, post)

    def _buttons(self, asked):
        rows = json.loads(asked.values.get("reply_markup", "{}")).get("inline_keyboard", [])
        buttons = {each["text"]: each["callback_data"] for row in rows for each in row}
        if any(not 1 <= len(data.encode()) <= 64 for data in buttons.values()):
            raise Refusal(400, "Bad Request: BUTTON_DATA_INVALID")
        return buttons

    def _count(self, chat):
        """Hold to the chat's rate."""
        if self.faults.rate is None:
            return
        limit, seconds = self.faults.rate
        now, sent = time.monotonic(), self._sent[chat]
        sent[:] = [when for when in sent if when > now - seconds]
        if len(sent) >= limit:
            self._limit(sent[0] + seconds - now)
        sent.append(now)

    def _told(self, chat, post):
        kind = "private" if chat > 0 else "supergroup"
        return {
            "message_id": post.id,
            "date": int(time.time()),
            "chat": {"id": chat, "type": kind},
            "from": BOT,
            "text": post.text,
        }


class Refusal(Exception):
    """An answer that says no."""

    def __init__(self, code, words, **parameters):
        super().__init__(words)
        self.code, self.words, self.parameters = code, words, parameters


@dataclass(slots=True)
class Post:
    """A message as the chat shows it."""

    id: int
    sender: int
    text: str
    reply_to: int | None = None
    thread: int | None = None
    edits: int = 0
    file: bytes | None = None
    buttons: dict = field(default_factory=dict)
    """The text of each button, and what pressing it sends."""


@dataclass(slots=True)
class Faults:
    """What goes wrong next."""

    lost: int = 0
    unconfirmed: int = 0
    limited: int = 0
    seconds: int = 1
    failing: int = 0
    """Requests of any kind that are answered with 502."""
    plain_only: bool = False
    refused: bool = False
    file_refusal: Refusal | None = None
    blocked: set = field(default_factory=set)
    rate: tuple[int, float] | None = None
    """So many messages in a chat in so many seconds."""


BODY_BYTES = 60_000_000


class Cut(Exception):
    """The connection ends here, without a word."""


@dataclass(slots=True)
class Asked:
    """One request."""

    path: str
    values: dict[str, str]
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)


class HttpServer:
    """Hands each request to `answer`, which returns a status and a body; cuts those that rest."""

    def __init__(self, answer):
        self._answer = answer
        self._resting = set()

    async def serve(self, listener):
        async with anyio.create_task_group() as group, listener:
            await listener.serve(self._talk, group)

    def cut_resting(self):
        """Cut what is connected and asks for nothing now."""
        for scope in self._resting:
            scope.cancel()

    async def _talk(self, stream):
        buffered = BufferedByteReceiveStream(stream)
        with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, Cut):
            async with stream:
                while True:
                    await self._one(stream, buffered)

    async def _one(self, stream, buffered):
        with anyio.CancelScope() as scope:
            self._resting.add(scope)
            try:
                head = await buffered.receive_until(b"\r\n\r\n", 65536)
            finally:
                self._resting.discard(scope)
        if scope.cancelled_caught:
            raise Cut
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        body = await buffered.receive_exactly(int(headers.get("content-length", 0)))
        status, said = await self._answer(_asked(first.split(" ")[1], headers, body))
        said = said if isinstance(said, bytes) else json.dumps(said).encode()
        await stream.send(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(said), said)
        )


def _asked(path, headers, body):
    kind = headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        return _parts(path, kind, body)
    return Asked(path, dict(parse_qsl(body.decode(), keep_blank_values=True)))


def _parts(path, kind, body):
    asked = Asked(path, {})
    for part in message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body).get_payload():
        name = part.get_param("name", header="content-disposition")
        data = part.get_payload(decode=True)
        if part.get_filename() is None:
            asked.values[name] = data.decode()
        else:
            asked.files[name] = (part.get_filename(), data)
    return asked


class Bringer:
    """Brings each until it is answered with 200."""

    def __init__(self, server):
        self._server = server
        self._busy = set()

    async def bring(self):
        """Bring each chat's updates in order, different chats' side by side."""
        async with httpx.AsyncClient() as client, anyio.create_task_group() as group:
            while True:
                for update in [*self._server.pending.values()] if self._server.webhook else []:
                    chat = _chat_of(update)
                    if chat not in self._busy:
                        self._busy.add(chat)
                        group.start_soon(self._bring_all, client, chat)
                await self._server.news.wait()

    async def _bring_all(self, client, chat):
        while self._server.webhook:
            found = [one for one in self._server.pending.values() if _chat_of(one) == chat]
            if not found:
                break
            if await self._brought(client, found[0]):
                self._server.pending.pop(found[0]["update_id"], None)
            else:
                await anyio.sleep(0.01)
        self._busy.discard(chat)

    async def _brought(self, client, update):
        url, secret = self._server.webhook
        with suppress(httpx.HTTPError):
            headers = {"X-Telegram-Bot-Api-Secret-Token": secret}
            said = await client.post(url, json=update, headers=headers, timeout=60)
            return said.status_code == 200
        return False


def _chat_of(update):
    told = next(value for value in update.values() if isinstance(value, dict))
    return told.get("message", told)["chat"]["id"]


TAGS = {"a", "b", "strong", "i", "em", "u", "ins", "s", "strike", "del", "code", "pre"}
TAGS |= {"blockquote", "tg-spoiler", "tg-emoji", "span"}
_NAME = re.compile(r"[^\s>]*")
_ATTRIBUTE = re.compile(r"""\s*([^\s=>]*)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+))?""")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|#\d+|#x[0-9a-fA-F]+);")


class Malformed(Exception):
    """It can't be parsed; the text is Telegram's."""


def shown(html):
    """The text that people see; raises `Malformed`."""
    text, place, open_tags = [], 0, []
    while place < len(html):
        begin = html.find("<", place)
        begin = len(html) if begin < 0 else begin
        text.append(_ENTITY.sub(lambda found: unescape(found[0]), html[place:begin]))
        place = begin
        if begin < len(html):
            is_end = html.startswith("</", begin)
            place = (_end_tag if is_end else _start_tag)(html, begin, open_tags)
    if open_tags:
        raise Malformed(f'Can\'t find end tag corresponding to start tag "{open_tags[-1]}"')
    return "".join(text)


def _start_tag(html, begin, open_tags):
    name = _NAME.match(html, begin + 1)
    if name[0].lower() not in TAGS:
        raise Malformed(f'Unsupported start tag "{name[0]}" at byte offset {begin}')
    place, attributes = name.end(), {}
    while not html.startswith(">", place):
        found = _ATTRIBUTE.match(html, place)
        if not found[1]:
            rest = html[found.end() :]
            if not rest.startswith(">"):
                raise Malformed(f"Unclosed start tag at byte offset {begin}")
            place = found.end()
            break
        attributes[found[1]] = (found[2] or "").strip("\"'")
        place = found.end()
    if name[0] == "span" and attributes.get("class") != "tg-spoiler":
        raise Malformed(f'Tag "span" must have class "tg-spoiler" at byte offset {begin}')
    open_tags.append(name[0].lower())
    return place + 1


def _end_tag(html, begin, open_tags):
    if not open_tags:
        raise Malformed(f"Unexpected end tag at byte offset {begin}")
    end = html.find(">", begin)
    if end < 0:
        raise Malformed(f"Unclosed end tag at byte offset {begin}")
    name, wanted = html[begin + 2 : end].strip().lower(), open_tags.pop()
    if name not in ("", wanted):
        raise Malformed(
            f'Unmatched end tag at byte offset {begin}, expected "</{wanted}>", found "</{name}>"'
        )
    return end + 1
