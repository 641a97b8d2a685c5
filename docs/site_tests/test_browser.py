"""The built site as a person meets it: links, search, dark mode, a phone."""

import urllib.parse

import pytest

from docs.site_tests.conftest import SITE as FOLDER

PAGES = sorted(
    f"{path.parent.relative_to(FOLDER).as_posix()}/".removeprefix("./")
    for path in FOLDER.rglob("index.html")
)


@pytest.fixture
def visit(browser, address):
    """A function that opens a page; the test fails where the page did."""
    contexts, problems = [], []

    def open_page(path="", width=1280, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        # A machine may pause for longer than Playwright's half minute.
        context.set_default_timeout(10 * 60 * 1000)
        contexts.append(context)
        return watched(context.new_page(), path)

    def watched(page, path):
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked(request.url))
        page.on("response", answered)
        page.goto(address + path)
        return page

    def asked(url):
        if not url.startswith((address, "data:", "blob:")):
            problems.append(f"asked for {url}")

    def answered(response):
        if response.status >= 400:
            problems.append(f"{response.status} {response.url}")

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_links_lead_to_pages(visit):
    page = visit()
    page.get_by_role("link", name="A batch that does not fit").first.click()
    page.wait_for_url("**/guides/batch_does_not_fit/")
    assert "A batch that does not fit" in page.locator("h1").inner_text()
    page.locator(".md-content").get_by_role(
        "link", name="Noise and the batch size"
    ).click()
    page.wait_for_url("**/guides/noise_and_batch_size/")


def test_search_finds_a_function(visit):
    page = visit()
    page.locator(".md-search__input").click()
    # Before the index is read, what is typed is not looked up.
    page.get_by_text("Type to start searching").wait_for()
    page.keyboard.type("per_sample_norms")
    # The list changes while it is typed: wait for what it must come to.
    page.locator(
        ".md-search-result__link[href*='reference/functions/']"
        "[href$=per_sample_norms]"
    ).first.click()
    page.wait_for_url("**#keras_pergrad.per_sample_norms")
    assert "/reference/functions/" in page.url
    marked = page.locator("mark").first
    marked.wait_for()
    assert marked.inner_text().lower() in "per_sample_norms"


@pytest.fixture(scope="module")
def first_pages(browser, address):
    """A function: the first three pages that the search finds."""
    context = browser.new_context()
    context.set_default_timeout(10 * 60 * 1000)
    page = context.new_page()

    def look_up(words):
        page.goto(f"{address}?q={urllib.parse.quote(words)}")
        page.wait_for_function(SEARCHED)
        links = page.locator(FIRST_OF_EACH_PAGE).all()[:3]
        return [link.get_attribute("href").split("?")[0] for link in links]

    yield look_up
    context.close()


#: The search is done: it has found something, or says that it has not.
SEARCHED = """() => document.querySelector(".md-search-result__item")
    || document.querySelector(".md-search-result__meta")
        .textContent.includes("No matching")"""
FIRST_OF_EACH_PAGE = ".md-search-result__item > a:first-child"


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("per-example", "guides/your_own_model/"),
        ("per-example gradients", "guides/your_own_model/"),
        ("tabular", "guides/your_own_model/"),
        ("imbalanced", "guides/your_own_model/"),
        ("class_weight", "guides/your_own_model/"),
        ("reproducible", "guides/consistent_gradients/"),
        ("M1", "guides/consistent_gradients/"),
        ("M1", "guides/slow_training/"),
        ("standardize", "guides/your_own_model/"),
        ("standardise", "guides/your_own_model/"),
        ("AdamW", "gradient_modes/"),
        ("normalise", "guides/what_you_may_have_read/"),
        ("normalize", "guides/your_own_model/"),
        ("autodiff", "guides/parallel/"),
        ("MirroredStrategy", "guides/parallel/"),
        ("profiling", "data_stall/"),
        ("pandas", "guides/your_own_model/"),
        ("batch-invariant", "guides/consistent_gradients/"),
        ("determinism", "limits/"),
        ("user-level privacy", "private_training/"),
        ("per-sample updates", "guides/your_own_loop/"),
        ("prefetch", "guides/what_you_may_have_read/"),
        ("privacy budget", "private_training/"),
        ("microbatch", "guides/batch_does_not_fit/"),
        ("out of memory", "guides/batch_does_not_fit/"),
        ("input saliency", "guides/input_gradients/"),
        ("GradientTape", "guides/your_own_loop/"),
        ("vectorized_map", "guides/your_own_loop/"),
        ("gradient accumulation", "guides/batch_does_not_fit/"),
        ("slow GPU", "guides/slow_training/"),
        ("gradients inconsistent M1", "guides/consistent_gradients/"),
        ("compute gradients efficiently", "guides/cheaper_gradients/"),
        ("parallel GradientTape", "guides/parallel/"),
        ("batch does not fit in memory", "guides/batch_does_not_fit/"),
        ("mislabeled samples", "guides/unusual_samples/"),
        ("label noise", "guides/unusual_samples/"),
        ("Opacus custom layer", "guides/coming_from/"),
        ("tape overhead", "guides/what_you_may_have_read/"),
        ("memory bound", "guides/what_you_may_have_read/"),
        ("sparse", "guides/what_you_may_have_read/"),
        ("pruning", "guides/what_you_may_have_read/"),
        ("normalize", "guides/what_you_may_have_read/"),
        ("input_gradients MirroredStrategy", "guides/input_gradients/"),
        ("MirroredStrategy custom step", "guides/your_own_loop/"),
        ("contention", "guides/what_you_may_have_read/"),
        ("private data frame", "private_training/"),
    ],
)
def test_search_finds_the_page(first_pages, words, path):
    """With one of the first three results, by the words of a question."""
    found = first_pages(words)
    assert any(page.endswith(f"/{path}") for page in found), found


def test_dark_mode_follows_the_system_and_the_reader(visit):
    light, dark = visit(scheme="light"), visit(scheme="dark")
    bright = background(light)
    assert background(dark) != bright
    # From the system's mode to light; then to dark; it stays on a new page.
    toggle = "label.md-header__button[for^=__palette]:not([hidden])"
    for _ in range(2):
        light.locator(toggle).click()
    light.wait_for_function("document.body.dataset.mdColorScheme === 'slate'")
    light.goto(light.url + "limits/")
    assert background(light) == background(dark)


#: What is wider than a phone, and does not scroll by itself.
BEYOND = """() => [...document.querySelectorAll(
    ".md-content p, .md-content li, .md-content img, .md-content h1"
)].filter(e => {
    const box = e.getBoundingClientRect();
    return box.width > 0 && box.right > innerWidth + 1
        && !e.closest(".md-typeset__scrollwrap, pre, .highlight");
}).map(e => e.outerHTML.slice(0, 80))"""
#: Names that would fit on a line, and stand on more than one.
BROKEN = """() => [...document.querySelectorAll(
    ".md-content :not(pre) > code"
)].filter(code => {
    const parts = [...code.getClientRects()];
    const length = parts.reduce((sum, part) => sum + part.width, 0);
    const line = code.closest("p, li, dd, td, th, h1, h2, h3, h4, summary");
    return /^[\\w.]+$/.test(code.textContent) && parts.length > 1
        && (!line || length < line.clientWidth);
}).map(code => code.textContent)"""
#: Tables that are cut off.
CUT = """() => [...document.querySelectorAll(".md-typeset table")].filter(
    table => table.scrollWidth > innerWidth
        && !["auto", "scroll"].includes(getComputedStyle(
            table.closest(".md-typeset__scrollwrap")).overflowX)
).length"""


def test_pages_fit_a_phone(visit, address):
    """Nothing is wider than the page but what scrolls by itself."""
    page, wrong = visit(width=390), {}
    for path in PAGES:
        page.goto(address + path, wait_until="domcontentloaded")
        wide = page.evaluate("document.documentElement.scrollWidth") > 390
        found = [page.evaluate(script) for script in (BEYOND, BROKEN, CUT)]
        if wide or any(found):
            wrong[path] = found
    assert wrong == {}


def test_menu_opens_on_a_phone(visit):
    page = visit(width=390)
    page.locator("label.md-header__button[for=__drawer]").click()
    page.locator(".md-nav--primary a[href='install/']").first.click()
    page.wait_for_url("**/install/")
    assert page.locator("h1").first.inner_text().strip()
