"""Serve the OpenAPI description, which is built once per process and format."""

import hashlib
import threading
from functools import lru_cache
from typing import Any

from django.http import HttpResponse
from django.utils.cache import get_conditional_response
from django.utils.encoding import force_bytes
from drf_spectacular.views import SpectacularAPIView
from rest_framework.renderers import BaseRenderer

# Without it, requests that arrive during the first one would all build the description.
_lock = threading.Lock()


class Description(SpectacularAPIView):
    """The OpenAPI description as YAML or JSON; it needs no token, so it must cost nothing."""

    def _get_schema_response(self, request: Any) -> Any:
        renderer: BaseRenderer = request.accepted_renderer
        with _lock:
            content, etag = _render(renderer.format)
        answer = HttpResponse(
            content,
            content_type=request.accepted_media_type,
            headers={
                "Content-Disposition": f'inline; filename="Cellrun.{renderer.format}"',
                "ETag": etag,
                "Cache-Control": "public, no-cache",
            },
        )
        return get_conditional_response(request, etag=etag, response=answer)


@lru_cache(maxsize=2)
def _render(name: str) -> tuple[bytes, str]:
    """Return the description in a format, `json` or `yaml`, and its ETag."""
    document = Description.generator_class().get_schema(public=True)
    renderer = next(found for found in Description.renderer_classes if found.format == name)
    content = force_bytes(renderer().render(document, renderer.media_type, {}))
    return content, f'"{hashlib.sha256(content).hexdigest()}"'
