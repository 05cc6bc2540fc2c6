"""References in a JSON schema as plain pointers (`#/$defs/a`): what `$id`, `$anchor` and `$dynamicAnchor` name is found
here, so that nothing behind this needs to know of them. Nothing is ever fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

from lmnb.errors import GrammarError
from lmnb.runtime.argument_checks import shown, shown_path


class _SeveralPlacesError(Exception):
    """A dynamic reference that depends on the way by which it is come to."""


Children = Callable[[dict[str, Any]], Iterator[tuple[str, Any]]]

_NAMES = ("$id", "id", "$anchor", "$dynamicAnchor")
_BASE = "http://schema.invalid/"  # of a schema that has no $id


def with_plain_references(root: dict[str, Any], children: Children) -> dict[str, Any]:
    """`root` with each `$ref` and `$dynamicRef` written as a pointer from the root. `children` gives a node's direct
    subschemas and the paths that lead to them. GrammarError for a reference that leads nowhere in this schema, and for
    a dynamic one that may lead to several places."""
    if not any(_uses_names(node) for _, node, _ in _nodes(root, children)):
        return root
    index = _Index(root, children)
    changed: dict[int, str] = {}
    for path, node, base in index.nodes:
        for key in ("$ref", "$dynamicRef"):
            if isinstance(node.get(key), str):
                try:
                    found = index.pointer(base, node[key], dynamic=key == "$dynamicRef")
                except _SeveralPlacesError:
                    raise GrammarError(
                        f"JSON schema keyword {shown(key)} at {shown_path('#' + path)} cannot be enforced: "
                        f"{shown(node[key])} names several places"
                    ) from None
                if found is None:
                    raise GrammarError(
                        f"JSON schema keyword {shown(key)} at {shown_path('#' + path)} points to "
                        f"{shown(node[key])}, which is not in this schema"
                    )
                if key == "$dynamicRef" and "$ref" in node:
                    raise GrammarError(
                        f"JSON schema keyword {shown(key)} at {shown_path('#' + path)} cannot be enforced beside '$ref'"
                    )
                changed[id(node)] = found
    nodes = {id(node) for _, node, _ in index.nodes}
    plain: dict[str, Any] = _rewritten(root, changed, nodes)
    return plain


def resolve(root: dict[str, Any], reference: str) -> Any:
    """What a pointer (`#`, `#/a/b`) leads to, schema or not; None if nothing."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and len(name) < 9 and int(name) < len(found) else None
        else:
            return None
    return found


def _uses_names(node: dict[str, Any]) -> bool:
    reference = node.get("$ref", "#")
    plain = isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
    return "$dynamicRef" in node or not plain or isinstance(node.get("$id"), str)


def _nodes(root: dict[str, Any], children: Children) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Every node, its pointer without `#`, and the address that its references are relative to."""
    stack: list[tuple[str, Any, str]] = [("", root, _BASE)]
    while stack:
        path, node, base = stack.pop()
        if not isinstance(node, dict):
            continue
        if isinstance(node.get("$id"), str):
            base = urldefrag(_joined(base, node["$id"]))[0]
        yield path, node, base
        stack.extend((f"{path}/{step}", child, base) for step, child in children(node))


class _Index:
    """Where everything stands that has a name."""

    def __init__(self, root: dict[str, Any], children: Children) -> None:
        self._root = root
        self.nodes = list(_nodes(root, children))
        self._resources: dict[str, str] = {}  # by address, the pointer of what has that $id
        self._anchors: dict[tuple[str, str], str] = {}
        self._dynamic: dict[str, list[str]] = {}
        self._resources[_BASE] = ""
        for path, node, base in self.nodes:
            if isinstance(node.get("$id"), str) or not path:
                self._resources.setdefault(base, path)
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(key), str):
                    self._anchors[base, node[key]] = path
            if isinstance(node.get("$dynamicAnchor"), str):
                self._dynamic.setdefault(node["$dynamicAnchor"], []).append(path)

    def pointer(self, base: str, reference: str, *, dynamic: bool) -> str | None:
        """The reference as `#...`; None if it leads nowhere."""
        address, fragment = urldefrag(_joined(base, reference))
        start = self._resources.get(address)
        if start is None:
            return None
        if not fragment or fragment.startswith("/"):
            target = f"#{start}{fragment}"
            crossed = self._crosses(start, fragment)
            return None if crossed or resolve(self._root, target) is None else target
        path = self._anchors.get((address, unquote(fragment)))
        if path is None:
            return None
        if dynamic and path in self._dynamic.get(fragment, ()) and len(self._dynamic[fragment]) > 1:
            raise _SeveralPlacesError
        return f"#{path}"

    def _crosses(self, start: str, fragment: str) -> bool:
        """Whether a pointer leads into an embedded schema with an address of its own, which standards leave open."""
        inner = {path for path in self._resources.values() if path.startswith(f"{start}/")}
        return any((start + fragment).startswith(f"{path}/") for path in inner)


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return f"{base}{reference}"
    try:
        return urljoin(base, reference)
    except ValueError:  # such as a bracket that is none of an address
        return quote(reference)


def _rewritten(value: Any, changed: dict[int, str], nodes: set[int]) -> Any:
    """A copy with the new references; names are left out of what are schemas (`nodes`)."""
    if isinstance(value, list):
        return [_rewritten(item, changed, nodes) for item in value]
    if not isinstance(value, dict):
        return value
    is_node = id(value) in nodes
    result = {}
    for key, child in value.items():
        if is_node and key in _NAMES and isinstance(child, str):
            continue
        if is_node and key in ("enum", "const", "default", "examples"):
            result[key] = child
        elif id(value) in changed and key in ("$ref", "$dynamicRef"):
            result["$ref"] = changed[id(value)]
        else:
            result[key] = _rewritten(child, changed, nodes)
    return result
