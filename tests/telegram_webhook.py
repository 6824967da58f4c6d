"""How the stand-in of Telegram brings updates to a webhook."""

from contextlib import suppress

import anyio
import httpx


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
    return next(value for value in update.values() if isinstance(value, dict))["chat"]["id"]
