"""The demo as an animated picture: what `nanoloop demo` prints, a line at a time, as an SVG.

Browsers and GitHub play it without a script. `python -m tests.test_readme` renews it.
"""

import subprocess
import sys
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "demo.svg"

ROWS, COLUMNS = 22, 84
LINE, WIDTH, TOP, LEFT = 20, 8.43, 52, 20
END = "Nothing is lost"
"""The line that begins so is the last one shown: behind it come paths of this machine."""
SECONDS = {"you": 0.9, "bot": 1.1, "beside": 1.3, "note": 1.0, "": 0.2}
"""How long each kind of line stands before the next one comes."""
LAST_SECONDS = 5.0


def demo_lines():
    """What the demo prints, without the paths at its end."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "nanoloop", "demo", "--fast", "--data", folder]
        done = subprocess.run(command, capture_output=True, check=True, encoding="utf-8", cwd=ROOT)
    lines = done.stdout.splitlines()
    last = next(n for n, line in enumerate(lines) if line.startswith(END))
    return [*lines[:last], lines[last].rpartition(" in")[0]]


def kind_of(line):
    if line.startswith(("you  ", "bot  ")):
        return line[:3]
    if line.startswith("       |"):
        return "beside"
    return "note" if line else ""


def picture(lines):
    """The SVG: each line appears in its time, and a full screen moves up by one."""
    times, now = [], 0.5
    for line in lines:
        times.append(now)
        now += SECONDS[kind_of(line)]
    whole = now + LAST_SECONDS
    rules, texts = [], []
    for n, (line, time) in enumerate(zip(lines, times, strict=True)):
        if line:
            at = 100 * time / whole
            rules.append(
                f"@keyframes l{n}{{0%,{at - 0.01:.2f}%{{opacity:0}}{at:.2f}%,100%{{opacity:1}}}}"
            )
            rules.append(f"#l{n}{{animation-name:l{n}}}")
            where = f'x="{LEFT}" y="{TOP + LINE * (n + 1)}"'
            texts.append(
                f'<text id="l{n}" class="line {kind_of(line)}" {where}>{escape(line)}</text>'
            )
    moves = [(times[n], n - ROWS + 1) for n in range(ROWS, len(lines))]
    up = "".join(f"{100 * t / whole:.2f}%{{transform:translateY({-LINE * n}px)}}" for t, n in moves)
    last = f"transform:translateY({-LINE * max(0, len(lines) - ROWS)}px)"
    wide, high = round(2 * LEFT + COLUMNS * WIDTH), TOP + LINE * ROWS + 24
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" role="img">
<title>nanoloop demo: answers do not wait while the summary is written</title>
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#e6edf3}}
.you{{font-weight:bold}}.beside{{fill:#56d4dd}}.note,.title{{fill:#8b949e}}
.line{{animation:{whole:.1f}s step-end infinite}}
#all{{{last};animation:all {whole:.1f}s step-end infinite}}
@keyframes all{{0%{{transform:none}}{up}100%{{{last}}}}}
{chr(10).join(rules)}
@media (prefers-reduced-motion:reduce){{.line,#all{{animation:none!important}}}}
</style>
<rect width="{wide}" height="{high}" rx="10" fill="#0d1117"/>
<circle cx="22" cy="20" r="6" fill="#ff5f57"/>
<circle cx="42" cy="20" r="6" fill="#febc2e"/>
<circle cx="62" cy="20" r="6" fill="#28c840"/>
<text class="title" x="{LEFT}" y="{TOP}">$ nanoloop demo</text>
<clipPath id="seen"><rect x="0" y="{TOP + 4}" width="{wide}" height="{LINE * ROWS + 6}"/></clipPath>
<g id="screen" clip-path="url(#seen)"><g id="all">
{chr(10).join(texts)}
</g></g>
</svg>
"""


def renew():
    """Draw it anew."""
    PICTURE.write_text(picture(demo_lines()), encoding="utf-8")
