"""What stands above the lists of replicas, debts and the recovery log while a hold is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse

from recovery.selectors import read_standing

if TYPE_CHECKING:
    from controlplane.admin_base import ReadOnlyAdmin as _Base
else:
    _Base = object


class HoldNotice(_Base):
    """Mixed into an admin: says that nothing is declared dead for now, why that may be, and when it ends."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Adds the notice to the list."""
        standing = read_standing()
        if request.method == "GET" and standing.held_until is not None:
            counted = "1 silent replica is" if standing.held == 1 else f"{standing.held} silent replicas are"
            end = f"{standing.held_until:%H:%M:%S}"
            text = (
                f"A hold is in force until {end} UTC: {counted} not declared dead yet, for an outage may have cut "
                "them off. Each gets one window; then its work is taken."
            )
            self.message_user(request, text, messages.WARNING, fail_silently=True)
        return super().changelist_view(request, extra_context)
