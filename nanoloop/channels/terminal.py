"""The terminal channel for people: answers grow above a fixed prompt."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.application.current import set_app
from prompt_toolkit.filters import to_filter
from prompt_toolkit.formatted_text import (
    ANSI,
    AnyFormattedText,
    FormattedText,
    StyleAndTextTuples,
    to_formatted_text,
)
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.renderer import print_formatted_text
from prompt_toolkit.styles import Style

from nanoloop.channels.screen import Blocks, last_lines, printable, rendered
from nanoloop.errors import BusFull
from nanoloop.events import TextStreamed
from nanoloop.files import load_file, make_folder, open_file, replace_file
from nanoloop.messages import Inbound, Outbound
from nanoloop.protocols import Bus
from nanoloop.sentences import Incidents
from nanoloop.session.speech import file_mark

_TWICE_SECONDS = 2.0
"""Pressing Ctrl-C twice within this time quits."""
_REFRESH_SECONDS = 1.0
_REDRAW_SECONDS = 0.03
_ROWS_BESIDE = 8
"""How many rows a growing block leaves for the prompt and the status line."""
_HISTORY_BYTES = 1_000_000

_MARK = "› "  # noqa: RUF001 - the prompt
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse ansibrightblack"})
_STYLES = {"notice": "ansibrightblack italic", "error": "ansired bold"}


def _nothing() -> str:
    return ""


class TerminalChannel:
    """Reads messages at a prompt. Enter sends; Esc-Enter or a backslash starts a new line.

    Ctrl-C stops the current answer; Ctrl-C twice, or Ctrl-D, quits.
    """

    name = "terminal"
    streams = True

    def __init__(
        self,
        *,
        chat: str,
        history: Path | None,
        status: Callable[[], str] = _nothing,
        terminal_input: Input | None = None,
        terminal_output: Output | None = None,
    ) -> None:
        self.chat = chat
        self._history = history
        self._status = status
        self.incidents = Incidents()
        """Details of failures for the operator: here, the person at the terminal."""
        self._waiting: list[str] = []
        self._waiting_since = 0.0
        self._blocks = Blocks()
        self._interrupted_at = -_TWICE_SECONDS
        self._bus: Bus | None = None
        self._prompt = self._made_prompt(terminal_input, terminal_output)

    def _made_prompt(self, source: Input | None, output: Output | None) -> PromptSession[str]:
        prompt: PromptSession[str] = PromptSession(
            message=self._message,
            multiline=True,
            prompt_continuation=" " * len(_MARK),
            bottom_toolbar=self._toolbar,
            history=InMemoryHistory() if self._history is None else FileHistory(self._history),
            key_bindings=_keys(self._interrupt),
            style=_STYLE,
            erase_when_done=True,  # so that the growing block disappears; the line is printed again
            refresh_interval=_REFRESH_SECONDS,
            input=source,
            output=output,
        )
        prompt.app.min_redraw_interval = _REDRAW_SECONDS
        # Output is printed in raw mode, because in cooked mode a Ctrl-C typed at that moment would
        # be a signal that ends the program, and a Ctrl-D would be lost.
        vars(prompt.app.input)["cooked_mode"] = nullcontext
        for window in prompt.app.layout.find_all_windows():
            window.dont_extend_height = to_filter(True)  # the status line stays at the prompt
        return prompt

    async def run(self, bus: Bus) -> None:
        """Put each message on the bus until the user quits."""
        self._bus = bus
        if self._history is not None:
            keep_private(self._history)
        draft = ""
        with patch_stdout(raw=True):
            while (text := await self._read(draft)) is not None:
                draft = await self._sent(bus, text)

    async def _read(self, draft: str) -> str | None:
        # prompt_toolkit would take over SIGINT; at the prompt, Ctrl-C is just a key.
        with suppress(EOFError):
            return await self._prompt.prompt_async(default=draft, handle_sigint=False)
        return None

    async def _sent(self, bus: Bus, text: str) -> str:
        """Send the text; return it if the bus was full, otherwise an empty string."""
        said = printable(text).replace("\n", f"\n{' ' * len(_MARK)}")
        # Shown first, because the answer may arrive at once.
        await self._show([("bold", f"{_MARK}{said}\n\n")])
        message = self._inbound(text)
        try:
            bus.put_nowait(message)
        except BusFull as full:
            await self._show([(_STYLES["error"], f"{full}\n\n")])
            return text
        if not self._waiting:
            self._waiting_since = monotonic()
        self._waiting.append(str(message.message_id))
        return ""

    def _inbound(self, text: str) -> Inbound:
        return Inbound(
            channel=self.name,
            chat=self.chat,
            text=text,
            message_id=uuid4().hex,
            rank="owner",
        )

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Show one item above the prompt."""
        if item.chat != self.chat:
            return
        if isinstance(item, Outbound):
            await self._show_whole(item)
        else:
            await self._show_markdown(self._blocks.feed(printable(item.text)))
        self._prompt.app.invalidate()

    async def _show_whole(self, item: Outbound) -> None:
        text = printable(item.text)
        # A chat's turns run one at a time, so a growing answer belongs to the oldest waiting
        # message.
        ends = bool(self._waiting) and item.reply_to == self._waiting[0]
        with suppress(ValueError):
            self._waiting.remove(str(item.reply_to))
            self._waiting_since = monotonic()
        if item.kind == "answer":
            await self._show_markdown(self._blocks.settle(text))
            for file in item.attachments:
                mark = f"{printable(file_mark(asdict(file)))}\n"
                await self._show([(_STYLES["notice"], mark)])
            return
        if ends:
            await self._show_markdown(self._blocks.settle())
        about = printable(self.incidents.line(item.incident))
        await self._show([(_STYLES[item.kind], f"{text}\n"), (_STYLES["notice"], f"{about}\n")])

    async def _show_markdown(self, text: str) -> None:
        if text.strip():
            await self._show(ANSI(f"{rendered(text, self._columns)}\n\n"))

    async def _show(self, text: AnyFormattedText) -> None:
        """Print text permanently, above the prompt if there is one."""
        app = self._prompt.app
        with set_app(app):
            async with in_terminal():
                print_formatted_text(app.output, text, _STYLE)
                app.output.flush()

    @property
    def _columns(self) -> int:
        return max(20, self._prompt.app.output.get_size().columns - 1)

    def _message(self) -> StyleAndTextTuples:
        """Return as much of the growing block as fits, with the prompt below it."""
        mark = FormattedText([("bold", _MARK)])
        if not self._blocks.open.strip():
            return mark
        rows = max(3, self._prompt.app.output.get_size().rows - _ROWS_BESIDE)
        block = last_lines(rendered(self._blocks.open, self._columns), rows)
        return [*to_formatted_text(ANSI(f"{block}\n\n")), *mark]

    def _toolbar(self) -> str:
        if monotonic() - self._interrupted_at < _TWICE_SECONDS:
            hint = "Ctrl-C again to quit"
        else:
            # A running counter shows that a slow answer is still on its way.
            seconds = f"{monotonic() - self._waiting_since:.0f} s"
            hint = f"{seconds} · Ctrl-C to stop" if self._waiting else ""
        return " · ".join(filter(None, (hint, printable(self._status()))))

    def _interrupt(self, event: KeyPressEvent) -> None:
        """Handle Ctrl-C: stop the answer or clear the line, and quit at the second press."""
        again = monotonic() - self._interrupted_at < _TWICE_SECONDS
        again = again and not event.current_buffer.text  # someone who is typing wants to stay
        self._interrupted_at = monotonic()
        if again:
            event.app.exit(exception=EOFError())
        elif self._waiting and self._bus is not None:
            with suppress(BusFull):  # the user will press it again
                self._bus.put_nowait(self._inbound("/stop"))
        elif event.current_buffer.text:
            event.current_buffer.reset()
            self._interrupted_at = -_TWICE_SECONDS


def _keys(interrupt: Callable[[KeyPressEvent], None]) -> KeyBindings:
    keys = KeyBindings()
    keys.add("c-c")(interrupt)
    keys.add("enter")(_enter)
    keys.add("escape", "enter")(_new_line)
    return keys


def _enter(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    if buffer.document.char_before_cursor == "\\" and buffer.document.is_cursor_at_the_end_of_line:
        buffer.delete_before_cursor()
        buffer.newline(copy_margin=False)
    elif buffer.text.strip():
        buffer.validate_and_handle()


def _new_line(event: KeyPressEvent) -> Any:
    event.current_buffer.newline(copy_margin=False)


def keep_private(path: Path) -> None:
    """Make the input history readable only by this user, and limit its size."""
    make_folder(path.parent)
    os.close(open_file(path, os.O_RDONLY | os.O_CREAT))
    if path.stat().st_size > _HISTORY_BYTES:
        newest = load_file(path)[-_HISTORY_BYTES // 2 :]
        newest = newest[newest.find(b"\n# ") + 1 :]
        replace_file(path, newest, durable=False)
