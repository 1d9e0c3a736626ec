"""Writes docs/api.md from the docstrings of ``tilewright`` and the arguments of its commands, and docs/modules.md
from the first sentence of every module.

python docs/generate_api.py
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import tilewright
from tilewright.evolve import cli

PAGE = Path(__file__).with_name("api.md")
MODULES_PAGE = Path(__file__).with_name("modules.md")
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("evolve", "workers", "fitness", "seeds", "library", "tilewright")
SECTION = re.compile(r"^(Parameters|Returns|Raises|Example):$")
HEAD = """# API

`python docs/generate_api.py` writes this page from docstrings and from the commands; do not edit it. [From
Python](python.md) and the [tutorial](tutorial.md) are better places to begin.

## Python: `import tilewright as tw`
"""


MODULES_HEAD = """# Every module in one sentence

`python docs/generate_api.py` writes this page from the modules' docstrings; do not edit it. [The map](architecture.md)
says what each folder is for, and answers common questions first.
"""


def modules_page() -> str:
    """The text of docs/modules.md. Kernels that are data of a library, and empty modules, are left out."""
    lines, folder = [MODULES_HEAD.rstrip()], Path()
    found = [module for name in FOLDERS for module in _modules(ROOT / name)]
    for path in sorted(
        found, key=lambda module: (FOLDERS.index(module.relative_to(ROOT).parts[0]), module.parent, module)
    ):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if text is None:
            continue
        if path.parent != folder:
            folder = path.parent
            lines += ["", f"## {folder.relative_to(ROOT)}", ""]
        sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`(])|\n\n", text)[0]
        lines.append(f"* `{path.name}`: {' '.join(sentence.split()).replace('``', '`')}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _modules(folder: Path) -> Iterator[Path]:
    """Python files below ``folder``, not through links."""
    for path in folder.iterdir():
        if path.is_symlink() or (folder.parent.name == "library" and path.name == "kernels"):
            continue
        if path.is_dir():
            yield from _modules(path)
        elif path.suffix == ".py":
            yield path


def page() -> str:
    """The text of docs/api.md."""
    lines = [HEAD]
    for name in (name for name in tilewright.__all__ if name != "__version__"):
        lines += _object(name, getattr(tilewright, name))
    lines += ["## Commands", "", "Every command takes `--home`. Exit codes: 0 done, 2 bad input, 130 interrupted.", ""]
    return "\n".join([*lines, *_command("tilewright", cli._parser())]).rstrip() + "\n"


def _object(name: str, thing: object) -> Iterator[str]:
    yield from (f"### {name}", "")
    if inspect.isclass(thing) and issubclass(thing, Exception):
        yield from _docstring(thing)
        return
    yield from ("```python", _signature(name, thing), "```", "", *_docstring(thing))
    for member, value in vars(thing).items() if inspect.isclass(thing) else ():
        if not member.startswith("_") and (inspect.isfunction(value) or getattr(value, "__doc__", None)):
            if inspect.isfunction(value):
                yield from (f"**`{_signature(member, value)}`**", "", *_docstring(value))
            elif isinstance(value, property) or hasattr(value, "func"):
                yield from (f"**`.{member}`**", "", *_docstring(value))


def _signature(name: str, thing: object) -> str:
    text = str(inspect.signature(thing))  # type: ignore[arg-type]
    unquoted = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return name + re.sub(r"\(self(, )?", "(", unquoted).removesuffix(" -> None")


def _docstring(thing: object) -> Iterator[str]:
    """A docstring as Markdown: sections become bold words, parameters items, examples blocks of code."""
    section = ""
    for line in (inspect.getdoc(thing) or "").splitlines():
        found = SECTION.match(line)
        if found:
            section = found[1]
            yield from (f"*{section}*", "", *(["```python"] if section == "Example" else []))
        elif section == "Example":
            yield line.removeprefix("    ")
        else:
            text = line.replace("``", "`")
            item = section != "Returns" and re.match(r"    (\w+): (.*)", text)
            indent = "  " if section in ("Parameters", "Raises") else ""
            yield f"* `{item[1]}`: {item[2]}" if item else re.sub(r"^ {4,8}", indent, text)
    yield from (["```", ""] if section == "Example" else [""])


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help for choice in action._choices_actions}
            rows += [f"| `{name} {key}` | {told.get(key, '')} |" for key in action.choices]
        elif action.help is not argparse.SUPPRESS and "-h" not in action.option_strings:
            shown = " ".join([*action.option_strings[-1:], *_value(action)])
            rows.append(f"| `{shown}` | {(action.help or '').replace('|', chr(92) + '|')} |")
    if rows:
        yield from (f"### `{name}`", "", "| | |", "| --- | --- |", *rows, "")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for key, inner in action.choices.items():
                yield from _command(f"{name} {key}", inner)


def _value(action: argparse.Action) -> list[str]:
    if action.nargs == 0:
        return []
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    text = str(value if action.option_strings else action.metavar or action.dest)
    return [f"[{text}]" if action.nargs == "?" else text]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    MODULES_PAGE.write_text(modules_page(), encoding="utf-8")
