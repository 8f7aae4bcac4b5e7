"""What docs/api.md leaves unsaid: a name without a docstring, a parameter or a field that nothing explains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.api import ALSO, found, methods, sections_of, shown

if TYPE_CHECKING:
    from collections.abc import Mapping


def faults(names: Mapping[str, str]) -> list[str]:
    """What a reader is not told of these classes and functions."""
    return [fault for name, path in names.items() for fault in faults_of(name, found(path))]


def faults_of(name: str, item: Any) -> list[str]:
    if not item.docstring:
        return [f"{name} has no docstring"]
    if item.is_function:
        known = _explained(item)
        return [f"{name} does not explain {one}" for one in _parameters(item) if one not in known]
    told = [f"{name}.{n} has no docstring" for n, m in _fields(item).items() if not m.docstring]
    if "__init__" in item.members and "dataclass" not in item.labels and not _is_error(item):
        known = sections_of(item)[1]
        told += [f"{name} does not explain {one}" for one in _parameters(item["__init__"]) if one not in known]
    return told + [fault for n, m in methods(item).items() for fault in faults_of(f"{name}.{n}", m)]


def _explained(function: Any) -> set[str]:
    """The parameters that its docstring explains, that of its class, or the one that it refers to."""
    text, own, _ = sections_of(function)
    known = set(own)
    if function.parent.is_class:
        known |= sections_of(function.parent)[2].keys()
        # the clients share a base that is not public: what a call takes is explained by the one for sync code
        known |= sections_of(found("chatlock.Chatlock"))[2].keys() if function.parent.name == "Client" else set()
    also = ALSO.match(text)
    if also:
        owner, _, method = also["other"].rpartition(".")
        other = found(f"chatlock.{owner}")[method] if owner else function.parent[method]
        known |= _explained(other.final_target if other.is_alias else other)
    return known


def _parameters(function: Any) -> list[str]:
    return [one.name for one in function.parameters if one.name not in ("self", "cls")]


def _fields(item: Any) -> dict[str, Any]:
    """The fields that an instance is made of, and the properties."""
    made = "dataclass" in item.labels or {"TypedDict", "NamedTuple"} & {str(base) for base in item.bases}
    return {n: m for n, m in shown(item).items() if m.is_attribute and (made or "property" in m.labels)}


def _is_error(item: Any) -> bool:
    return found("chatlock.ChatlockError") in (item, *item.mro())
