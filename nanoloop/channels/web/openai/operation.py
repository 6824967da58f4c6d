"""A line of the table of operations whose errors are in OpenAI's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from nanoloop.channels.web.admission import admitted
from nanoloop.channels.web.body import read_body
from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.malformed import problem_of
from nanoloop.channels.web.openai.refusing import Unfit, error_response, refusal_of
from nanoloop.channels.web.operation import ROUTE, Call, Operation

NESTED = 200_000
"""Lists and objects that a body may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOperation(Operation):
    """Takes bodies as large as an upload may be: images stand in them."""

    def route(self, desk: Desk) -> Route:
        """Where requests come to it."""

        async def served(request: Request) -> Any:
            request.scope[ROUTE] = self.path
            try:
                return await self.run(await self._let_in(request, desk))
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:  # noqa: BLE001 - the client is told, and a bug is logged
                return error_response(refusal_of(error, desk, path=self.path))

        return Route(self.path, served, methods=[self.method])

    async def _let_in(self, request: Request, desk: Desk) -> Call:
        caller = admitted(request, desk)
        body: Any = None
        if self.body is not None:
            data = await read_body(request, desk.limits.upload_bytes, desk.limits.body_seconds)
            body = _checked(self.body, data)
        return Call(request=request, desk=desk, caller=caller, query=None, body=body)


def _checked(body: type[BaseModel], data: bytes) -> BaseModel:
    if data.count(b"[") + data.count(b"{") > NESTED:  # reading them would hold up everyone
        raise Unfit(413, f"that is more than {NESTED} lists and objects: send less")
    try:
        return body.model_validate_json(data)
    except ValidationError as error:
        where, sentence = problem_of(error, body)
    raise Unfit(400, sentence, param=where or None, code="invalid_value")
