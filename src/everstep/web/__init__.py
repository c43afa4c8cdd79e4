"""The page and its HTTP interface: `everstep.web.serve` shows it, `everstep.web.app` is an application to mount."""

from typing import TYPE_CHECKING

from everstep.runtime.public_names import names_from

if TYPE_CHECKING:
    from everstep.views.redaction import redact_secrets
    from everstep.web.application import app
    from everstep.web.serving import serve
else:
    __getattr__, __dir__ = names_from(
        __name__,
        {
            "everstep.web.application": ("app",),
            "everstep.web.serving": ("serve",),
            "everstep.views.redaction": ("redact_secrets",),
        },
    )

__all__ = ["app", "redact_secrets", "serve"]
