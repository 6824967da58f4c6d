"""What some models need and their files don't say, by the name that the file gives itself."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a model differs from what its file says."""

    template: str = ""
    """A file in templates/, where the model does not keep to the form of calls of its own one."""
    repeat_penalty: float = 0
    """Against saying the same over and over (DRY); no good where figures have to be copied."""

    @property
    def chat_template(self) -> str:
        """The template, or "" for the one in the model's file."""
        if not self.template:
            return ""
        return (files(__package__) / "templates" / self.template).read_text()


FAMILIES = {
    "qwen2.5 coder": Family(template="bare_json.jinja"),
    "smollm2 135m": Family(repeat_penalty=0.8),
}


def family_of(name: str) -> Family:
    """The family of a model with such a name; for most there is nothing to know."""
    plain = name.lower().replace("-", " ")
    return next((family for part, family in FAMILIES.items() if part in plain), Family())
