"""What the page makes of an answer's Markdown: what was meant, and nothing that could do harm."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoloop.providers.scripted import ScriptedProvider
from tests import browser
from tests.browser import expect, opened, serving

anyio_backend = browser.anyio_backend
chromium = browser.chromium

RENDER = """async text => {
    const { render } = await import("/static/markdown.js");
    const box = document.createElement("div");
    box.append(render(text));
    return box.innerHTML;
}"""


@pytest.fixture(scope="module")
async def page(chromium, tmp_path_factory):
    folder = tmp_path_factory.mktemp("markdown")
    async with serving(folder) as served, opened(chromium, served.url) as opened_page:
        yield opened_page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a **b** *c* ~~d~~", "<p>a <strong>b</strong> <em>c</em> <del>d</del></p>"),
        ("***a***", "<p><em><strong>a</strong></em></p>"),
        ("2*3*4 and snake_case_name", "<p>2<em>3</em>4 and snake_case_name</p>"),
        ("**重要。**下", "<p><strong>重要。</strong>下</p>"),
        ("an *open one, and a `tick", "<p>an *open one, and a `tick</p>"),
        ("`a <b>` and ``c ` d``", "<p><code>a &lt;b&gt;</code> and <code>c ` d</code></p>"),
        ("**Note:**text", "<p><strong>Note:</strong>text</p>"),
        ("one\ntwo", "<p>one<br>two</p>"),
        ("one<br>two &amp; three", "<p>one<br>two &amp;amp; three</p>"),
        ("A\n---\nB", "<p>A</p><hr><p>B</p>"),
        ("# A\n## B ##", '<h3 data-level="1">A</h3><h4 data-level="2">B</h4>'),
        ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        ("---", "<hr>"),
        ("\\*a\\* \\[b\\]", "<p>*a* [b]</p>"),
        (
            "- a\n- b\n  - c\n    - d",
            "<ul><li>a</li><li>b<ul><li>c<ul><li>d</li></ul></li></ul></li></ul>",
        ),
        ("1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
        (
            "10. a\n  - b\n    - c",
            '<ol start="10"><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li></ol>',
        ),
        ("-      a\n  - b", "<ul><li>a<ul><li>b</li></ul></li></ul>"),
        ("> 1. a\n>  - b", "<blockquote><ol><li>a</li></ol><ul><li>b</li></ul></blockquote>"),
        (
            "> 1. a\n>   - b",
            "<blockquote><ol><li>a<ul><li>b</li></ul></li></ol></blockquote>",
        ),
        ("3. a\n\n4. b", '<ol class="loose" start="3"><li>a</li><li>b</li></ol>'),
        ("In\n1984. No list", "<p>In<br>1984. No list</p>"),
        ("so:\n- a", "<p>so:</p><ul><li>a</li></ul>"),
    ],
)
async def test_it_is_shown_as_it_was_meant(page, text, shown):
    assert await page.evaluate(RENDER, text) == shown


@pytest.mark.parametrize(
    ("text", "label", "href"),
    [
        ("[a **b**](https://x.org/y_(z))", "a b", "https://x.org/y_(z)"),
        ('[a](<https://x.org/a b> "why")', "a", "https://x.org/a%20b"),
        ("See https://x.org/a_b_c?d=1.", "https://x.org/a_b_c?d=1", "https://x.org/a_b_c?d=1"),
        ("(https://x.org/a(b))", "https://x.org/a(b)", "https://x.org/a(b)"),
        ("“https://x.org/a”", "https://x.org/a", "https://x.org/a"),
        ("<https://x.org>", "https://x.org", "https://x.org/"),
        ("[m](mailto:ada@x.org)", "m", "mailto:ada@x.org"),
        ("[https://x.org](https://x.org)", "https://x.org", "https://x.org/"),
        ("[](https://x.org)", "https://x.org/", "https://x.org/"),
        ("![a cat](https://x.org/cat.png)", "🖼 a cat", "https://x.org/cat.png"),
        ("[![a cat](https://x.org/cat.png)](https://x.org)", "🖼 a cat", "https://x.org/"),
        ("[no]() [none](/api/me) https://x.org", "https://x.org", "https://x.org/"),
    ],
)
async def test_a_link_leads_where_it_says(page, text, label, href):
    found = await page.evaluate(
        """async text => {
            const { render } = await import("/static/markdown.js");
            const links = [...render(text).querySelectorAll("a")];
            return links.map((link) => [link.textContent, link.href, link.rel]);
        }""",
        text,
    )
    assert found == [[label, href, "noopener noreferrer nofollow"]]


async def test_a_table_and_a_task_list_are_shown(page):
    table = await page.evaluate(RENDER, "| a | b |\n|---|--:|\n| `x|y` | 1\\|2 | 3 |\nafter")
    assert "<td><code>x|y</code></td>" in table
    assert '<td data-align="end">1|2</td></tr></tbody></table></div><p>after</p>' in table
    tasks = await page.evaluate(RENDER, "- [x] a\n- [ ] b")
    assert tasks.count('type="checkbox" disabled=""') == 2
    assert tasks.count("checked") == 1


@pytest.mark.slow
async def test_code_keeps_every_sign_and_can_be_copied(chromium, tmp_path):
    code = "\tif (a < b && c) {\n\n    return `<b>`;\n}"
    provider = ScriptedProvider([f"So:\n\n```js\n{code}\n```\n\nDone."])
    async with serving(tmp_path, provider) as served, opened(chromium, served.url) as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.fill("#text", "Code!")
        await page.keyboard.press("Enter")
        await expect(page.locator("#log pre code")).to_have_text(code, use_inner_text=True)
        await page.get_by_role("button", name="Copy code").click()
        await expect(page.locator("#log .code .copy")).to_have_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == code


HOSTILE = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg/onload=window.pwned=1>",
    "<a href='javascript:window.pwned=1'>x</a>",
    "[x](javascript:window.pwned=1)",
    "[x](JaVaScRiPt:window.pwned=1)",
    "[x](java\tscript:window.pwned=1)",
    "[x](&#106;avascript:window.pwned=1)",
    "[x](data:text/html,<script>window.pwned=1</script>)",
    "[x](vbscript:x) [y](file:///etc/passwd) [z](//x.org) [w](/api/me)",
    "![x](javascript:window.pwned=1)",
    '![x](https://x.org/"onerror="window.pwned=1)',
    '[x](https://x.org/" onmouseover="window.pwned=1)',
    "<javascript:window.pwned=1>",
    "`<script>window.pwned=1</script>`",
    '```"><script>window.pwned=1</script>\n</code></pre><script>window.pwned=1</script>\n```',
    "| <script>window.pwned=1</script> |\n|---|\n| <img src=x onerror=window.pwned=1> |",
    "<div><p><iframe srcdoc='<script>parent.pwned=1</script>'></iframe></p></div>",
    "<style>* { display: none }</style><link rel=stylesheet href=//x.org><base href=//x.org>",
    "- [ ] <input onfocus=window.pwned=1 autofocus>\n> <details open ontoggle=window.pwned=1>",
]


@pytest.mark.slow
async def test_no_hostile_text_does_anything(chromium, tmp_path):
    text = "\n\n".join(HOSTILE)
    async with (
        serving(tmp_path, ScriptedProvider([text])) as served,
        opened(chromium, served.url) as page,
    ):
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        await page.fill("#text", text)
        await page.keyboard.press("Enter")
        await expect(page.locator("#log .prose")).to_contain_text("<details open ontoggle")
        assert await page.evaluate("window.pwned") is None
        links = page.locator("#log a")
        schemes = await links.evaluate_all("links => links.map((link) => link.protocol)")
        assert set(schemes) == {"https:"}
        assert await page.locator("#log :is(script, iframe, img, style, link, base)").count() == 0
        assert all(url.startswith(served.url) for url in asked)


async def test_a_finished_block_and_the_begun_code_stay_as_they_were_drawn(page):
    kept = await page.evaluate(
        """async () => {
            const { Growing } = await import("/static/markdown.js");
            const box = document.createElement("div");
            const growing = new Growing(box);
            const grown = (piece) => (growing.add(piece), growing.paint(), [...box.children]);
            const [first] = grown("# One\\n\\nTwo\\n\\n```js\\nlet a;\\nlet b");
            const words = box.querySelector("code").firstChild;
            const [same] = grown(" = 1;");
            const isSameText = words === box.querySelector("code").firstChild;
            return [first === same, isSameText, words.data];
        }"""
    )
    assert kept == [True, True, "let a;\nlet b = 1;"]


TAGS = """p br strong em del code pre a ul ol li input blockquote hr h3 h4 h5 h6 div span button
    svg path table thead tbody tr th td"""
ATTRIBUTES = """href rel target class start type disabled checked aria-label aria-hidden data-level
    data-align tabindex role viewBox d"""
CHECK = """async texts => {
    const { render, Growing } = await import("/static/markdown.js");
    return texts.map((text) => {
        const [whole, grown] = [document.createElement("div"), document.createElement("div")];
        whole.append(render(text));
        const growing = new Growing(grown);
        for (let at = 0; at < text.length; at += 1 + (at % 3)) {
            growing.add(text.slice(at, at + 1 + (at % 3)));
            growing.paint();
        }
        const all = [...whole.querySelectorAll("*")];
        return {
            isSame: whole.isEqualNode(grown),
            grown: grown.innerHTML, whole: whole.innerHTML,
            tags: [...new Set(all.map((node) => node.localName))],
            attributes: [...new Set(all.flatMap((node) => node.getAttributeNames()))],
            schemes: [...whole.querySelectorAll("a")].map((link) => link.protocol),
        };
    });
}"""
PARTS = st.sampled_from(
    ["\n", "\n\n", " ", "  ", "    ", "\t", "a", "word", "é", "🙂", "*", "**", "_", "~~", "`",
     "```", "```js\n", "~~~", "[", "]", "](", "(", ")", "!", "<", ">", "> ", "- ", "* ", "1. ",
     "2) ", "# ", "### ", "\n#", "\n1.", "\n```", "---", "|", "| a | b |\n|---|---|\n", "\\",
     "https://x.org", "javascript:", "mailto:a@b", "[x](https://x.org)", "[x](javascript:x)",
     "<br>", "<script>", "[ ] ", "&amp;", "\r\n", "data:", '"', "'"]
)  # fmt: skip
TEXTS = st.lists(PARTS, max_size=24).map("".join)


async def test_any_text_is_harmless_and_the_same_in_whatever_pieces_it_comes(page):
    examples = []

    @settings(max_examples=300, database=None)
    @given(TEXTS)
    def collect(example):
        examples.append(example)

    collect()
    found = await page.evaluate(CHECK, examples)  # one trip to the browser for all of them
    for example, seen in zip(examples, found, strict=True):
        assert seen["isSame"], json.dumps([example, seen["grown"], seen["whole"]], indent=1)
        assert set(seen["tags"]) <= set(TAGS.split()), example
        assert set(seen["attributes"]) <= set(ATTRIBUTES.split()), example
        assert set(seen["schemes"]) <= {"http:", "https:", "mailto:"}, example


async def test_markup_would_be_harmless_even_if_parser_and_policy_let_it_through(
    chromium, tmp_path
):
    async with (
        serving(tmp_path) as served,
        opened(chromium, served.url, bypass_csp=True) as page,
    ):
        found = await page.evaluate(UNGUARDED, HOSTILE)
        assert await page.evaluate("window.pwned") is None
    assert {name for name, *_ in found} <= set(TAGS.split())
    assert {name for _, *names in found for name in names} <= set(ATTRIBUTES.split())


UNGUARDED = """async texts => {
    const { markdown } = await import("/static/dialect.js");
    const { render } = await import("/static/markdown.js");
    markdown.set({ html: true });
    document.body.append(...texts.map(render));
    const all = texts.flatMap((text) => [...render(text).querySelectorAll("*")]);
    return all.map((node) => [node.localName, ...node.getAttributeNames()]);
}"""


@pytest.mark.parametrize(
    "piece",
    ["[", "![", "*a ", "**", "`", "` ``", "](", "[x](", "<http://", "> ", "- ", "  - a\n", "| a ",
     "|-", "~~", "# ", "\\", "((", "https://x.org/(", "1. a\n   ", "_a", '[a](b "', "```\n"],
)  # fmt: skip
async def test_no_text_takes_long(page, piece):
    text = piece * (60_000 // len(piece))
    usual = USUAL * (len(text) // len(USUAL))
    spent = await page.evaluate(
        """async texts => {
            const { render } = await import("/static/markdown.js");
            const least = texts.map(() => Infinity);
            for (let round = 0; round < 5 && !(least[0] < 10 * least[1]); round += 1) {
                texts.forEach((text, number) => {
                    const started = performance.now();
                    render(text);
                    least[number] = Math.min(least[number], performance.now() - started);
                });
            }
            return least;
        }""",
        [text, usual],
    )
    assert spent[0] < 10 * spent[1]


USUAL = "*a* `b` [c](d)\n"
"""An ordinary answer to compare with: how fast the machine is makes no difference."""
