"""The admin's skin: the one place that knows django-unfold, so that another skin is one file's change.

Every admin of the project takes its base classes, filters and forms from here. What is drawn in cells is in `render`,
what an operator may do in `verbs`, both without the skin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ERROR_FLAG
from django.contrib.auth import forms as auth_forms
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from controlplane.admin_base.paging import EstimatingPaginator
from controlplane.admin_base.verbs import VerbAdmin
from controlplane.core.clock import database_now

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite, RelatedFieldListFilter, action, display

    _SkinModelAdmin = admin.ModelAdmin[Any]
    _SkinTabularInline = admin.TabularInline[Any, Any]
    AutocompleteFilter = RelatedFieldListFilter
    DateRangeFilter = admin.DateFieldListFilter
    UserChangeForm = auth_forms.UserChangeForm[Any]
    UserCreationForm = auth_forms.UserCreationForm[Any]
    AdminPasswordChangeForm = auth_forms.AdminPasswordChangeForm[Any]
else:
    from unfold.admin import ModelAdmin as _SkinModelAdmin
    from unfold.admin import TabularInline as _SkinTabularInline
    from unfold.contrib.filters.admin import AutocompleteSelectFilter as AutocompleteFilter
    from unfold.contrib.filters.admin import RangeDateTimeFilter as DateRangeFilter
    from unfold.decorators import action, display
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
    from unfold.sites import UnfoldAdminSite as AdminSite

__all__ = [
    "AdminPasswordChangeForm",
    "AdminSite",
    "AutocompleteFilter",
    "DateRangeFilter",
    "ModelAdmin",
    "ReadOnlyAdmin",
    "TabularInline",
    "UserChangeForm",
    "UserCreationForm",
    "action",
    "display",
]


class ModelAdmin(VerbAdmin, _SkinModelAdmin):
    """What every list and page of the project has in common."""

    paginator = EstimatingPaginator
    # The exact count of all rows beside the filtered one costs a scan of a million runs at every click.
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_fullwidth = True
    list_filter_submit = True
    compressed_fields = True
    change_form_template = "console/change_form.html"
    change_list_template = "console/change_list.html"
    empty_list_hint = ""
    """What to do next, shown where the list has no row and no filter is set."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Adds the hint for a list that is empty by itself, not by its filters."""
        if any("\x00" in value for _, values in request.GET.lists() for value in values):
            # No text in PostgreSQL has it, so no row matches; answered as Django answers a filter that is none.
            return HttpResponseRedirect(f"{request.path}?{ERROR_FLAG}=1")
        response = super().changelist_view(request, extra_context)
        context = response.context_data if isinstance(response, TemplateResponse) else None
        if context and (cl := context.get("cl")):
            # The skin offers "show all" wherever the two differ, also where all is shown.
            cl.full_result_count = cl.result_count
            bare = not (cl.result_count or cl.query or cl.has_active_filters)
            context["empty_hint"] = self.empty_list_hint if bare else ""
            context["as_of"] = database_now()
        return response

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """No more than two fields beside each other: more of them cut each other's text off."""
        return [
            (title, {**options, "fields": [pair for row in options["fields"] for pair in _pairs(row)]})
            for title, options in super().get_fieldsets(request, obj)
        ]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Says of when the page is: its ages and countdowns go on by themselves, its numbers do not."""
        return super().render_change_form(request, {"as_of": database_now(), **context}, *args, **kwargs)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Only verbs: Django's bulk delete would pass by the services and their audit."""
        actions = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions


def _pairs(row: Any) -> list[Any]:
    if not isinstance(row, list | tuple):
        return [row]
    return [tuple(row[place : place + 2]) for place in range(0, len(row), 2)]


class ReadOnlyAdmin(ModelAdmin):
    """For rows that only services write: looked at here, changed by verbs."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never here: by verbs."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never here."""
        return False


class TabularInline(_SkinTabularInline):
    """A read-only table of a row's children."""

    extra = 0
    can_delete = False
    show_change_link = False

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never here: by verbs."""
        return False
