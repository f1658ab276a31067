"""What an operator may do from the admin, one way for all: permission, exact count, reason, confirmation, audit.

A verb is offered twice, as an action over selected rows and as a button on a row's page; both lead to one confirmation
page, and that to one service function. Nothing is done by GET, nothing without the verb's own permission, and never to
more rows than were counted on the page that was confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.cache import add_never_cache_headers
from django.utils.http import url_has_allowed_host_and_scheme

from controlplane.core.audit import Actor
from controlplane.core.errors import DomainError

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

    _Base = ModelAdmin[Any]
else:
    _Base = object

T = TypeVar("T")

CAP = 1000
"""Rows of one confirmation; a larger selection is done in parts, and the page says so."""

SHOWN = 12
ACTION_PREFIX = "verb_"


class ReasonForm(forms.Form):
    """Every verb asks why; the answer goes to the audit log."""

    reason = forms.CharField(
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 2, "autofocus": True}),
        help_text="Kept in the audit log beside your name.",
    )

    field_order: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """What the verb would meet now. `standing`: the facts it rests on; if they changed, the page is shown again."""

    lines: Sequence[str]
    standing: Mapping[Any, Any] = field(default_factory=dict)
    warning: bool = False

    @property
    def token(self) -> str:
        """What a confirmation is bound to."""
        return ";".join(f"{key}:{value}" for key, value in self.standing.items())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the verb did, in a sentence with counts; `secret` is shown on the next page and never again."""

    sentence: str
    changed: int
    secret: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """One confirmed request: the rows, the validated fields, who asks."""

    objects: Sequence[Any]
    values: Mapping[str, Any]
    actor: Actor
    standing: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why, as the person wrote it."""
        return str(self.values.get("reason", ""))

    def each(self, act: Callable[[Any], T]) -> list[T]:
        """Do it to every row, each in a transaction of its own. A refusal midway says what was done before it."""
        done: list[T] = []
        for row in self.objects:
            try:
                done.append(act(row))
            except DomainError as refusal:
                if len(self.objects) == 1:
                    raise
                raise PartlyDone(
                    f"{len(done)} of {len(self.objects)} done; then, at {row}: {refusal}", code=refusal.code
                ) from refusal
        return done


class PartlyDone(DomainError):
    """A verb over many rows met one that refused. What was done before it stays done; the rest was not touched."""


def _always(_: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of one kind of row."""

    name: str
    label: str
    permission: str
    perform: Callable[[Order], Outcome]
    explain: str
    form: type[forms.Form] = ReasonForm
    preview: Callable[[Sequence[Any], Mapping[str, Any]], Preview] | None = None
    preview_from_form: bool = False
    """The preview depends on what was filled in, so the page is shown twice: filled in, then confirmed."""
    applies: Callable[[Any], bool] = _always
    many: bool = True
    on_list: bool = False
    """Needs no row: a button above the list."""
    danger: bool = False
    removes: bool = False
    """The row is gone afterwards, and its page with it."""
    icon: str = "bolt"


@dataclass(slots=True)
class _Page:
    """The confirmation page under way."""

    verb: Verb
    objects: Sequence[Any]
    selected: int
    form: forms.Form
    preview: Preview | None = None
    ready: bool = False
    notes: list[str] = field(default_factory=list)


def actor_of(request: HttpRequest) -> Actor:
    """The signed-in person, with the id of this request."""
    user = request.user
    return Actor(name=user.get_username(), user_id=user.pk, request_id=request.META.get("wharfinger.request_id", ""))


class VerbAdmin(_Base):
    """Mixed into the project's ModelAdmin: the verbs of this kind of row."""

    verbs: Sequence[Verb] = ()

    def get_urls(self) -> list[URLPattern]:
        """One address per kind of row; the verb's name is part of it."""
        name = "{}_{}_verb".format(*self._names())
        view = self.admin_site.admin_view(self.verb_view)
        return [path("verb/<slug:name>/", view, name=name), *super().get_urls()]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """The permitted verbs over selected rows, after Django's own actions."""
        actions: dict[str, Any] = super().get_actions(request)
        if "_popup" in request.GET:
            return actions
        for verb in self.verbs:
            if verb.many and not verb.on_list and request.user.has_perm(verb.permission):
                name = ACTION_PREFIX + verb.name
                actions[name] = (partial(_confirm_selected, verb), name, f"{verb.label} …")
        return actions

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Answers a verb without permission with 403, where Django would only say that no action was chosen."""
        posted = request.POST.get("action", "")
        if posted.startswith(ACTION_PREFIX):
            self.require(request, self.find_verb(posted.removeprefix(ACTION_PREFIX)))
        context = {"list_verbs": self.buttons(request, [v for v in self.verbs if v.on_list], None)}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Adds the buttons of the verbs that this row allows."""
        row = kwargs.get("obj")
        possible = [v for v in self.verbs if row is not None and not v.on_list and v.applies(row)]
        context["verb_buttons"] = self.buttons(request, possible, row)
        return super().render_change_form(request, context, *args, **kwargs)

    def buttons(self, request: HttpRequest, verbs: Sequence[Verb], row: Any) -> list[dict[str, object]]:
        """What the template needs to draw the permitted ones."""
        return [
            {
                "label": v.label,
                "danger": v.danger,
                "icon": v.icon,
                "url": self.verb_url(v, row, request.get_full_path()),
            }
            for v in verbs
            if request.user.has_perm(v.permission)
        ]

    def verb_url(self, verb: Verb, row: Any, back: str) -> str:
        """The confirmation page of one row, or of none."""
        address = reverse("admin:{}_{}_verb".format(*self._names()), args=[verb.name])
        query = {"next": back, **({"ids": row.pk} if row is not None else {})}
        return f"{address}?{urlencode(query)}"

    def find_verb(self, name: str) -> Verb:
        """Raises Http404."""
        for verb in self.verbs:
            if verb.name == name:
                return verb
        raise Http404(f"There is no verb {name!r} here.")

    def require(self, request: HttpRequest, verb: Verb) -> None:
        """Raises PermissionDenied, which is a 403."""
        if not request.user.has_perm(verb.permission):
            raise PermissionDenied(f"You may not do this: it needs the permission {verb.permission}.")

    def verb_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """The confirmation page, and what happens once it is confirmed."""
        verb = self.find_verb(name)
        self.require(request, verb)
        ids = _parse_ids(request.POST.get("ids") or request.GET.get("ids") or "")
        objects = list(self.get_queryset(request).filter(pk__in=ids).order_by("pk")) if ids else []
        if not objects and not verb.on_list:
            raise Http404("None of the selected rows is here any more.")
        page = _Page(verb, objects, len(objects), verb.form(request.POST if request.method == "POST" else None))
        if request.method != "POST":
            return self.show(request, page)
        return self._posted(request, page)

    def _posted(self, request: HttpRequest, page: _Page) -> HttpResponse:
        if not page.form.is_valid():
            return self.show(request, page)
        try:
            page.preview = _preview(page)
            page.ready = True
            if not _confirmed(request, page):
                return self.show(request, page)
            standing = page.preview.standing if page.preview else {}
            outcome = page.verb.perform(Order(page.objects, page.form.cleaned_data, actor_of(request), standing))
        except DomainError as refusal:
            page.form.add_error(None, str(refusal))
            return self.show(request, page)
        return self._done(request, page, outcome)

    def _done(self, request: HttpRequest, page: _Page, outcome: Outcome) -> HttpResponse:
        back = self._list_url() if page.verb.removes else self._back(request)
        if outcome.secret:
            context = {"title": outcome.sentence, "secret": outcome.secret, "back": back}
            return _private(self._template(request, "console/secret.html", context))
        level = messages.SUCCESS if outcome.changed else messages.WARNING
        self.message_user(request, outcome.sentence, level)
        return HttpResponseRedirect(back)

    def show(self, request: HttpRequest, page: _Page) -> HttpResponse:
        """Draw the confirmation page."""
        if page.preview is None and not page.verb.preview_from_form:
            page.preview = _preview(page)
            page.ready = True
        context = {
            "title": self._heading(page),
            "subtitle": None,
            "verb": page.verb,
            "page": page,
            "form": page.form,
            "shown": page.objects[:SHOWN],
            "more": max(len(page.objects) - SHOWN, 0),
            "ids": ",".join(str(row.pk) for row in page.objects),
            "submit": self._submit(page),
            "action_url": reverse("admin:{}_{}_verb".format(*self._names()), args=[page.verb.name]),
            "back": self._back(request),
        }
        return _private(self._template(request, "console/confirm.html", context))

    def _template(self, request: HttpRequest, name: str, context: dict[str, Any]) -> TemplateResponse:
        base = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        return TemplateResponse(request, name, {**base, **context})

    def _heading(self, page: _Page) -> str:
        if not page.objects:
            return page.verb.label
        if len(page.objects) == 1:
            return f"{page.verb.label}: {page.objects[0]}"
        return f"{page.verb.label}: {len(page.objects):,} {self.opts.verbose_name_plural}"

    def _submit(self, page: _Page) -> str:
        if not page.ready:
            return "Show what would happen"
        if len(page.objects) <= 1:
            return page.verb.label
        return f"{page.verb.label} ({len(page.objects):,} {self.opts.verbose_name_plural})"

    def _back(self, request: HttpRequest) -> str:
        asked = request.POST.get("next") or request.GET.get("next") or ""
        if url_has_allowed_host_and_scheme(asked, {request.get_host()}, require_https=request.is_secure()):
            return asked
        return self._list_url()

    def _list_url(self) -> str:
        return reverse("admin:{}_{}_changelist".format(*self._names()))

    def _names(self) -> tuple[str, str]:
        return self.opts.app_label, self.opts.model_name or ""


def _confirm_selected(verb: Verb, admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
    """A changelist action: the confirmation page for the selection, at most `CAP` rows of it, oldest first."""
    admin.require(request, verb)
    objects = list(queryset.order_by("pk")[: CAP + 1])
    selected = len(objects)
    if selected > CAP:
        selected, objects = queryset.order_by().count(), objects[:CAP]
    page = _Page(verb, objects, selected, verb.form())
    if selected > CAP:
        page.notes.append(f"{selected:,} are selected; this does the oldest {CAP:,} of them. Repeat it for the rest.")
    return admin.show(request, page)


def _parse_ids(text: str) -> list[int]:
    parts = [part for part in text.split(",") if part]
    if len(parts) > CAP or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise Http404("That is no list of rows.")
    return [int(part) for part in parts]


def _preview(page: _Page) -> Preview | None:
    if page.verb.preview is None:
        return None
    values = page.form.cleaned_data if page.form.is_bound and page.form.is_valid() else {}
    return page.verb.preview(page.objects, values)


def _confirmed(request: HttpRequest, page: _Page) -> bool:
    """Whether what is confirmed is what the page had shown."""
    if request.POST.get("step") != "confirm":
        return False
    token = page.preview.token if page.preview else ""
    if request.POST.get("seen", "") == token:
        return True
    page.notes.append("What you confirmed is not what stands now. Look again, then confirm.")
    return False


def _private(response: TemplateResponse) -> TemplateResponse:
    add_never_cache_headers(response)
    return response
