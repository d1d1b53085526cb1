"""Refusals, in GitHub's words."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class RefusedError(Exception):
    """An act that GitHub answers with an error status; `errors` are the details of a 422."""

    status: int
    message: str
    errors: list[Any] = field(default_factory=list)


def not_found() -> RefusedError:
    """Return the 404 that GitHub also gives for what the caller may not see."""
    return RefusedError(404, "Not Found")


def invalid(resource: str, field_name: str, message: str) -> RefusedError:
    """Return a failed validation (https://docs.github.com/rest/using-the-rest-api/troubleshooting-the-rest-api)."""
    detail = {"resource": resource, "field": field_name, "code": "custom", "message": message}
    return RefusedError(422, "Validation Failed", [detail])
