"""What pages name is there: links, paths, modules, campaigns, commands; the map answers; no record is lost."""

import ast
import re
import runpy
import shlex
import tomllib
from fnmatch import fnmatch

import pytest
import yaml

from testkit import RECORDS, ROOT
from tilewright.evolve import cli
from tilewright.evolve.campaign.config import packaged_campaigns
from tilewright.seeds.catalogue import all_operators

MAP = ROOT / "docs" / "architecture.md"
INDEX = RECORDS / "README.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    INDEX,
]
LINKED = [*PAGES, *sorted(set(RECORDS.rglob("*.md")) - {INDEX})]

LINK = re.compile(r"\]\(([^)\s]+)\)")
FOLDERS = "evolve|fitness|workers|seeds|experiments|tests|testkit|docs|library|examples|tilewright"
PATH = re.compile(rf"(?<![\w./<-])(?:\.\./)*((?:{FOLDERS})/[\w./*-]*[\w*/])(?![\w<])")
MODULE = re.compile(r"(?:-m|from|import) ((?:experiments|testkit|tilewright)(?:\.\w+)*)")
STUDY = re.compile(r"python -m (experiments[\w.]*\w)([^`\n#]*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
CAMPAIGN = re.compile(r"tilewright run ([\w-]+)(?![\w./-])")

QUESTIONS = 69


def _id(page):
    return str(page.relative_to(ROOT))


def _text(page):
    return page.read_text(encoding="utf-8")


def _anchors(page):
    """What a heading is called in an address."""
    headings = re.findall(r"^#+ +(.*)$", _text(page), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", LINKED, ids=_id)
def test_every_link_leads_somewhere(page):
    broken = []
    for link in LINK.findall(_text(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_every_path_that_a_page_names_exists(page):
    """A path may be a pattern, or the beginning of the names of files that a command writes."""
    named = {path.rstrip("/") for path in PATH.findall(LINK.sub("]", _text(page)))}
    assert not [path for path in sorted(named) if not list(ROOT.glob(path)) and not list(ROOT.glob(path + ".*"))]


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_every_module_and_packaged_campaign_that_a_page_names_exists(page):
    text = _text(page)
    assert not [name for name in sorted(set(MODULE.findall(text))) if not _module(name)]
    known = packaged_campaigns()
    assert not [name for name in set(CAMPAIGN.findall(text)) if name.islower() and name not in known]


@pytest.mark.parametrize("page", LINKED, ids=_id)
def test_every_option_of_a_study_that_a_page_names_is_one(page):
    lost = []
    for module, words in STUDY.findall(_text(page)):
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        if not path.is_file():  # a record names the program that made it, at the commit it names
            continue
        source = path.read_text(encoding="utf-8")
        lost += [f"{module} {option}" for option in OPTION.findall(words) if f'"{option}"' not in source]
    assert not lost


def _module(dotted):
    path = ROOT.joinpath(*dotted.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _names(source):
    """Every function, class and variable that a module's source makes, methods and fields as well."""
    return set(_made(ast.parse(source)))


def _made(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_every_command_line_of_a_page_is_one(page):
    """Names in capitals stand for a user's own; ``test_documents`` of the library runs what the README says."""
    fenced = False
    for line in _text(page).splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif (fenced or line.startswith("    ")) and line.strip().startswith("tilewright "):
            words = shlex.split(line.split(" #")[0].split(" --command")[0])
            try:
                cli._parser().parse_args(words[1:])
            except SystemExit:
                pytest.fail(f"{_id(page)}: {line.strip()}")


def test_the_map_answers_every_question_with_one_place():
    """A row is a question, a file, and a function, class or variable that the file holds."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \| \[`(.+?)`\]\((.+?)\) \| `(.+?)` \|", _text(MAP), re.M)
    assert [int(number) for number, *_ in rows] == list(range(1, QUESTIONS + 1))
    for number, _, shown, link, name in rows:
        path = (MAP.parent / link).resolve()
        assert path == ROOT / shown and path.is_file(), number
        assert name in _names(_text(path)), (number, name)


def test_the_map_has_a_line_for_every_folder():
    text = _text(MAP)
    tops = ("evolve", "fitness", "workers", "seeds", "experiments", "testkit", "tests", "library")
    inner = [
        path
        for top in ("evolve", "workers", "experiments")
        for path in (ROOT / top).iterdir()
        if path.is_dir() and path.name != "__pycache__" and any(path.iterdir())
    ]
    wanted = [*tops, *(_id(path) for path in inner)]
    assert not [name for name in wanted if f"`{name}/`" not in text]


def test_the_page_on_operators_names_every_one_and_its_suites():
    named = re.findall(r"`([^`]+)`", _text(ROOT / "docs" / "operators.md"))
    patterns = [name for name in named if "/" in name]
    shipped = all_operators()
    assert not [name for name in shipped if not any(fnmatch(name, pattern) for pattern in patterns)]
    assert not {suite for operator in shipped.values() for suite in operator.suites} - set(named)
    families = [pattern for pattern in patterns if pattern.split("/")[0] in {name.split("/")[0] for name in shipped}]
    assert not [pattern for pattern in families if not any(fnmatch(name, pattern) for name in shipped)]


def test_the_readme_is_short_and_shows_the_shipped_quickstart():
    readme = _text(ROOT / "README.md")
    assert len(readme.splitlines()) <= 110
    (sample,) = re.findall(r"^```yaml\n(.*?)^```$", readme, re.M | re.S)
    assert yaml.safe_load(sample) == yaml.safe_load(_text(ROOT / "experiments/campaigns/quickstart.yaml"))


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=_id)
def test_every_extra_that_a_page_installs_is_one(page):
    known = tomllib.loads(_text(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    asked = {
        extra for group in re.findall(r"'(?:tilewright|\.)\[([\w,]+)\]'", _text(page)) for extra in group.split(",")
    }
    assert asked <= set(known)


@pytest.mark.parametrize(("function", "name"), [("page", "api.md"), ("modules_page", "modules.md")])
def test_a_generated_page_is_what_docstrings_and_commands_say(function, name):
    made = runpy.run_path(str(ROOT / "docs" / "generate_api.py"))[function]()
    assert made == _text(ROOT / "docs" / name), "run: python docs/generate_api.py"


def test_the_readme_leads_to_the_map_at_once_and_to_every_page():
    readme = _text(ROOT / "README.md")
    assert "docs/architecture.md" in "\n".join(readme.splitlines()[:40])
    reached, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        reached.add(page)
        for link in LINK.findall(_text(page)):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file() and target not in reached:
                queue.append(target)
    assert not [_id(page) for page in PAGES if page not in reached]


def test_every_record_is_named_by_the_index_or_a_page():
    """Raw files by the index or by the record beside them; name a new one in ``experiments/records/README.md``."""
    pages = "\n".join(_text(page) for page in PAGES)
    lost = []
    for path in sorted(RECORDS.rglob("*")):
        if path.is_dir() or path == INDEX:
            continue
        beside = "" if path.suffix == ".md" else "\n".join(_text(p) for p in path.parent.glob("*.md"))
        if path.name not in pages and path.name not in beside:
            lost.append(_id(path))
    assert not lost
