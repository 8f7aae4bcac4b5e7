"""docs/api.md: every public name with its docstring, as griffe reads both from the source.

What a class or function takes stands in its docstring under `Args:`, a field's meaning in the string below the field.
`Other Parameters:` of a class explains what several of its methods take.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import griffe

from chatlock.settings import Settings
from tools.api_sections import FIRST, HEAD, LAST, SECTIONS, TWINS, Section
from tools.tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
ALSO = re.compile(r"See (?P<other>\w+(?:\.\w+)*)[.;]?\s*(?P<more>.*)", re.DOTALL)
EXTRA = re.compile(r'framework\("[\w.]+", "(?P<extra>[\w-]+)"\)')
DEFAULT = re.compile(r"\s*Default: (?P<value>.+)\.$", re.DOTALL)
FOREIGN = ("asyncio.", "BaseCheckpointSaver", "Channel")
WORDS = ("PolicyName", "Overflow", "PriorityName", "Backlog", "AwaitingRule")
LINKED = re.compile(r"See (\w+(?:\.\w+)*)")


@cache
def package() -> griffe.Module:
    """chatlock, as its source says."""
    loaded = griffe.load("chatlock", search_paths=[ROOT], resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    return loaded


def found(path: str) -> Any:
    """The object that stands under a dotted path, wherever it is defined."""
    here: Any = package()
    for name in path.removeprefix("chatlock").strip(".").split("."):
        here = here[name] if name else here
    return here.final_target if here.is_alias else here


def public(owner: Any) -> dict[str, Any]:
    """The public members of a class, inherited ones too: its own first, as they stand in the source."""
    order = {name: at for at, name in enumerate(FIRST, -len(FIRST))}
    names = sorted(owner.all_members, key=lambda n: (n in LAST, order.get(n, n not in owner.members)))
    members = {name: owner.all_members[name] for name in names if not name.startswith("_")}
    return {name: member.final_target if member.is_alias else member for name, member in members.items()}


def shown(owner: Any) -> dict[str, Any]:
    """The members that are not shown with another class: one that it inherits from, or its twin for sync code."""
    others = [base for base in map(str, owner.bases) if base in headings()]
    others += [TWINS[owner.name]] if owner.name in TWINS else []
    elsewhere = [member for other in others for member in public(found(headings()[other])).values()]
    return {name: member for name, member in public(owner).items() if all(member is not one for one in elsewhere)}


def sections_of(item: Any) -> tuple[str, dict[str, str], dict[str, str]]:
    """A docstring: its text, what it says of its own parameters, and of those that several methods share."""
    text, own, shared = [], {}, {}
    for part in item.docstring.parse("google", warnings=False) if item.docstring else ():
        if part.kind is griffe.DocstringSectionKind.text:
            text.append(part.value)
        else:
            into = own if part.kind is griffe.DocstringSectionKind.parameters else shared
            into |= {one.name: " ".join(one.description.split()) for one in part.value}
    return "\n\n".join(text), own, shared


def escaped(text: str) -> str:
    """Docstring text as Markdown: nothing of it is HTML, and `See NAME` leads there."""
    return LINKED.sub(lambda m: f"See [{m[1]}](#{slug(m[1])})" if m[1] in names() else m[0], text.replace("<", "&lt;"))


def slug(heading: str) -> str:
    """The anchor that a heading has."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def headings() -> dict[str, str]:
    """The classes and functions that are shown, and where each is found."""
    return {name: path for section in SECTIONS for name, path in section.headings().items()}


@cache
def names() -> frozenset[str]:
    """What has a heading of its own."""
    called = {f"{name}.{method}" for name, path in headings().items() for method in methods(found(path))}
    return frozenset(headings()) | called


def methods(item: Any) -> dict[str, Any]:
    """Those to call: what carries out an interface is called by whoever asks for that."""
    if not item.is_class or any(str(base).startswith(FOREIGN) for base in item.bases):
        return {}
    return {name: member for name, member in shown(item).items() if member.is_function}


def signature(name: str, function: Any) -> str:
    """As it is written, a parameter per line where it is long."""
    head = "".join(f"@{d.value}\n" for d in function.decorators if str(d.value).endswith("contextmanager"))
    if function.name != "__init__":
        head += "async def " if "async" in function.labels else "def "
    text = re.sub(r"= (_?[A-Z_]{3,})\b", lambda m: f"= {_constant(function, m[1])}", function.signature(name=name))
    text = quoted(text)
    if len(text) <= WIDTH:
        return head + text
    inner, after = text[len(name) + 1 : text.rindex(")")], text[text.rindex(")") :]
    return head + f"{name}(\n" + "".join(f"    {one},\n" for one in _split(inner)) + after


def _number(code: str) -> str:
    return f"{int(code):_}" if code.isdigit() else quoted(code)


def quoted(code: str) -> str:
    """Code with the quotes of the source."""
    return code.replace("'", '"')


def _constant(function: Any, name: str) -> str:
    value = getattr(import_module(function.module.path), name)
    return f"{value:_}" if isinstance(value, int) else repr(value)


def _split(parameters: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, char in enumerate(parameters):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            yield parameters[start:at].strip()
            start = at + 1
    yield parameters[start:].strip()


def fields(item: Any, *, defaults: bool) -> str:
    """The fields and properties of a class as a table, or nothing."""
    rows = []
    for name, member in shown(item).items():
        if member.is_attribute and (member.docstring or "property" in member.labels):
            meaning = sections_of(member)[0]
            said = DEFAULT.search(meaning)
            value = escaped(said["value"]) if said else f"`{_number(str(member.value))}`"
            meaning = escaped(" ".join(DEFAULT.sub("", meaning).split()))
            kind = quoted(str(member.annotation))
            rows.append([f"`{name}`", f"`{kind}`", *([value] if defaults else []), meaning])
    return table(["name", "type", *(["default"] if defaults else []), "meaning"], rows) if rows else ""


def explained(said: dict[str, str]) -> str:
    """Parameters as a list."""
    return "\n".join(f"- `{name}`: {escaped(text)}" for name, text in said.items())


def entry(level: int, name: str, item: Any, *, defaults: bool = False) -> list[str]:
    """A class or function with its heading."""
    text, own, shared = sections_of(item)
    parts = [f"{'#' * level} {name}"]
    if item.is_function:
        written = item.overloads or [item]
        parts.append("```py\n" + "\n".join(signature(name.split(".")[-1], one) for one in written) + "\n```")
    elif "__init__" in item.all_members and own:
        parts.append(
            "```py\n" + signature(name.split(".")[-1], item.all_members["__init__"]).removesuffix(" -> None") + "\n```"
        )
    bases = [str(base) for base in getattr(item, "bases", ()) if str(base) in names()]
    parts += [f"A kind of {', '.join(f'[{base}](#{slug(base)})' for base in bases)}."] if bases else []
    parts += [escaped(text), explained(own)]
    if item.is_class:
        parts.append(fields(item, defaults=defaults))
        parts += ["Parameters of several methods:", explained(shared)] if shared else []
        parts += _methods_of(level, name, item)
    return [part for part in parts if part]


def _methods_of(level: int, name: str, item: Any) -> list[str]:
    parts, differs = [], {}
    for method, member in methods(item).items():
        also = ALSO.fullmatch(sections_of(member)[0])
        if also is None:
            parts += entry(level + 1, f"{name}.{method}", member)
        elif also["more"]:
            differs[method] = " ".join(also["more"].split())
    return (["What differs:", explained(differs)] if differs else []) + parts


def reasons() -> str:
    """Every InvalidInput of the package by its reason."""
    told: dict[str, str] = {}
    for path in sorted((ROOT / "chatlock").rglob("*.py")):
        said: dict[str, ast.expr] = {}
        for node in _in_order(ast.parse(path.read_text())):
            match node:
                case ast.Assign(targets=[ast.Name(name)], value=text):
                    said[name] = text
                case ast.Call(func=ast.Name("InvalidInput"), args=[ast.Constant(str(reason)), ast.Name(name)]):
                    told.setdefault(reason, _message(said[name]))
                case ast.Call(func=ast.Name("InvalidInput"), args=[ast.Constant(str(reason)), text]):
                    told.setdefault(reason, _message(text))
    return table(["reason", "message"], ([f"`{reason}`", text] for reason, text in sorted(told.items())))


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree as they stand in the source."""
    for child in ast.iter_child_nodes(node):
        yield child
        yield from _in_order(child)


def _message(text: ast.expr) -> str:
    match text:
        case ast.Constant(str(words)):
            return escaped(words)
        case ast.JoinedStr(parts):
            return escaped("".join(p.value if isinstance(p, ast.Constant) else ".." for p in parts))
    return ""


def notices() -> str:
    """The notices of chatlock.hooks."""
    kinds = [str(kind).strip() for kind in str(package()["hooks.Notice"].value).split("|")]
    rows = [(kind, package()[f"hooks.{kind}"]) for kind in kinds]
    return table(
        ["notice", "fields", "told when"],
        ([f"`{k}`", ", ".join(f"`{f}`" for f in public(i)), " ".join(sections_of(i)[0].split())] for k, i in rows),
    )


def settings() -> str:
    """The environment variables."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else "none" if field.default is None else f"`{field.default}`"
        rows.append([f"`CHATLOCK_{name.upper()}`", default, field.description or ""])
    return table(["variable", "default", "meaning"], rows)


def types() -> str:
    """What the short names of types stand for."""
    paths = ("options.Source", "intake.Named", "intake.Choice", *(f"policies.{name}" for name in WORDS))
    told = ((path.split(".")[-1], str(found(path).value).strip("\"'")) for path in paths)
    return table(["type", "stands for"], ([f"`{name}`", f"`{quoted(value)}`"] for name, value in told))


TABLES = {"reasons": reasons, "notices": notices, "settings": settings, "types": types}


def _section(section: Section) -> list[str]:
    parts = [f"## {section.title}", section.text]
    for module, extra_names in section.names.items():
        if section.by_module:
            source = found(module)
            extra = EXTRA.search(source.filepath.read_text())
            parts += [f"### {module}", escaped(sections_of(source)[0])]
            parts += [f"Needs the extra `{extra['extra']}`: `pip install '.[{extra['extra']}]'`."] if extra else []
        for name in extra_names:
            heading = section.heading(module, name)
            level = 4 if section.by_module else 3
            parts += entry(level, heading, found(f"{module}.{name}"), defaults=section.defaults)
    return [*parts, *(TABLES[name]() for name in section.tables)]


def page() -> str:
    """The whole page."""
    contents = "\n".join(
        f"- [{s.title}](#{slug(s.title)})" + "".join(f" · [{n}](#{slug(n)})" for n in s.headings()) for s in SECTIONS
    )
    return "\n\n".join([HEAD, contents, *(part for section in SECTIONS for part in _section(section))]) + "\n"
