"""Wheels of this tree and of packages beside it, and environments that have nothing else."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def build(project, folder):
    """The wheel of the project in that folder."""
    words = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    before = {*Path(folder).glob("*.whl")}
    done(sys.executable, "-m", "pip", *words, project)
    (made,) = {*Path(folder).glob("*.whl")} - before
    return made


def write_wheel(folder, name, version, files):
    """A wheel with these files, `{path: text}`, that nobody had to build."""
    about = f"{name}-{version}.dist-info"
    files = files | {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = Path(folder) / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inside, text in files.items():
            wheel.writestr(inside, text)
        record = "".join(f"{inside},,\n" for inside in (*files, f"{about}/RECORD"))
        wheel.writestr(f"{about}/RECORD", record)
    return path


class Environment:
    """A fresh environment of Python."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.python = self.folder / "bin" / "python"
        done(sys.executable, "-m", "venv", self.folder)

    def share_libraries(self):
        """Let it use what is installed here, but for nanoloop itself."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        shared = (path for path in sys.path if path.endswith("site-packages"))
        (site / "shared.pth").write_text("\n".join(shared))

    def install(self, *what):
        """Have pip install that, with the versions that are tested."""
        pinned = ("--constraint", ROOT / "config" / "constraints.txt")
        done(self.python, "-m", "pip", "install", "--quiet", *pinned, *what)

    def run(self, *words, cwd, **env):
        """What a command of it says and leaves, in that folder."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        env = kept | {"PATH": f"{self.folder}/bin:{os.defpath}"} | env
        return subprocess.run(
            list(map(str, words)),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
        )


def done(*command):
    """Run that, and fail with what it said if it fails."""
    ended = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
