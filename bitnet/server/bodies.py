"""Bodies of requests: read and checked in a thread, and describe on the OpenAPI page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

    from bitnet.wire.fields import Form

__all__ = ["FORMS", "body_of", "describe", "taking"]

#: Those that a route takes, by name.
FORMS: dict[str, Form] = {}


def taking(form: Form) -> dict[str, Any]:
    """Description of a route whose body is *form*, for its decorator."""
    FORMS[form.name] = form
    schema = {"$ref": f"#/components/schemas/{form.name}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def body_of(request: Request, form: Form) -> dict[str, Any]:
    """The fields of the body of *request*, read in a thread so that no stream waits for it.

    Raises:
        UsageError: as :meth:`Form.parse`.
    """
    return await asyncio.to_thread(form.parse, await request.body())


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI page of *app*, with the forms that its routes take."""
    if app.openapi_schema is None:
        page = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        schemas = page.setdefault("components", {}).setdefault("schemas", {})
        schemas |= {name: form.openapi() for name, form in sorted(FORMS.items())}
        app.openapi_schema = page
    return app.openapi_schema
