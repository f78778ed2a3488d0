"""Shows numpy docstrings the way that this project writes them: ``name : a remark``, and the type in the signature.

A Griffe extension for the API reference. What stands behind the colon is a remark wherever the signature has a type; it
becomes the beginning of the description, and the type is the signature's.
"""

from __future__ import annotations

from typing import Any

import griffe

_SECTIONS = (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes)


class DocstringNotes(griffe.Extension):
    """Moves remarks from the place of the type to the description."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the sections of one docstring, once, before anything renders them."""
        if obj.docstring is None:
            return
        declared = _declared(obj)
        for section in obj.docstring.parsed:
            if section.kind in _SECTIONS:
                for item in section.value:
                    _rewrite(item, [declared.get(name.strip()) for name in item.name.split(",")])


def _declared(obj: griffe.Object) -> dict[str, Any]:
    """Return the types that the code gives: of a function's parameters, of a class's attributes."""
    if isinstance(obj, griffe.Function):
        return {parameter.name: parameter.annotation for parameter in obj.parameters}
    return {
        name: member.annotation if isinstance(member, griffe.Attribute) else member.returns
        for name, member in obj.members.items()
        if isinstance(member, griffe.Attribute | griffe.Function)
    }


def _rewrite(item: Any, annotations: list[Any]) -> None:
    """Rewrite one item, of one name or of several names that share a line."""
    remark = "" if item.annotation is None else str(item.annotation).strip()
    if not remark or None in annotations or any(_squeezed(remark) in _squeezed(str(one)) for one in annotations):
        return
    item.annotation = annotations[0] if len({str(one) for one in annotations}) == 1 else None
    item.description = f"{remark}\n\n{item.description}" if item.description.strip() else remark


def _squeezed(text: str) -> str:
    return text.replace(" or ", "|").replace(" ", "").casefold()
