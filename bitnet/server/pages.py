"""The pages for a browser: files of this package, each with its type, its ETag and one policy."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

OPEN_PREFIX = "/page/"  # files a page needs before it can ask for the worker's key
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
# Only scripts and styles of this worker are loaded, and text never becomes markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def _files() -> dict[str, tuple[bytes, str, str]]:
    """Each file of the pages by its name: its bytes, their type and their ETag."""
    pages = {}
    for file in (files("bitnet.server") / "page").iterdir():
        if media_type := TYPES.get("." + file.name.rpartition(".")[2]):
            body = file.read_bytes()
            pages[file.name] = body, media_type, f'"{hashlib.sha256(body).hexdigest()}"'
    return pages


_FILES = _files()

router = APIRouter(include_in_schema=False)


@router.get("/")
async def chat_page(request: Request) -> Response:
    """The chat page."""
    return await page_file("chat.html", request)


@router.get("/docs")
async def docs_page(request: Request) -> Response:
    """The page that lists the routes."""
    return await page_file("docs.html", request)


@router.get(OPEN_PREFIX + "{name}")
async def page_file(name: str, request: Request) -> Response:
    """A file, or 304 if the browser has it; it revalidates each time, so parts always match."""
    if name not in _FILES:
        raise HTTPException(404)
    body, media_type, etag = _FILES[name]
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "ETag": etag,
    }
    tags = request.headers.get("if-none-match", "")
    if etag in [tag.strip().removeprefix("W/") for tag in tags.split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)
