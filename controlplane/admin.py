"""The admin of what belongs to no app of ours: the audit log, people and roles, and django-q2's tasks in our skin."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.auth import admin as auth_admin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django_q import admin as q_admin
from django_q.models import Failure, OrmQ, Schedule, Success

from controlplane.admin_base import (
    AdminPasswordChangeForm,
    DateRangeFilter,
    ModelAdmin,
    ReadOnlyAdmin,
    UserChangeForm,
    UserCreationForm,
    render,
)
from controlplane.admin_base.clock import SecondsSince
from controlplane.admin_base.filters import indexed_values
from controlplane.core.models import AuditEntry

if TYPE_CHECKING:
    _UserAdmin = auth_admin.UserAdmin[User]

    class _Untyped:
        """django-q2 has no types; its admins are ModelAdmins."""

    _TaskAdmin = _Untyped
    _FailAdmin = _Untyped
    _ScheduleAdmin = _Untyped
    _QueueAdmin = _Untyped
else:
    _UserAdmin = auth_admin.UserAdmin
    _TaskAdmin, _FailAdmin = q_admin.TaskAdmin, q_admin.FailAdmin
    _ScheduleAdmin, _QueueAdmin = q_admin.ScheduleAdmin, q_admin.QueueAdmin

SUBJECT_PAGES = {"run": "admin:admission_run_change", "runner": "admin:runners_runner_change"}
SUBJECT_LISTS = {
    "physical slots": "admin:admission_physicalreport_changelist",
    "tenant": "admin:admission_tenant_changelist",
    "permit": "admin:admission_permit_changelist",
    "replica": "admin:recovery_replica_changelist",
    "enrolment token": "admin:runners_enrolmenttoken_changelist",
}
for replaced in (User, Group, Schedule, Success, Failure, OrmQ):
    admin.site.unregister(replaced)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Who did what to what, and why. The database itself refuses to change or delete an entry."""

    list_display = ("when", "ago", "actor", "verb_badge", "subject_cell", "reason", "change")
    list_display_links = ("when",)
    list_filter = (
        indexed_values("verb"),
        indexed_values("actor"),
        indexed_values("subject_type", "kind of subject"),
        ("at", DateRangeFilter),
    )
    search_fields = ("=subject", "actor__startswith", "=request_id")
    search_help_text = "Subject (run id, tenant slug, …), request id, or the beginning of an actor"
    ordering = ("-id",)
    fields = (
        ("when", "actor"),
        ("verb_badge", "subject_cell"),
        "reason",
        ("before_json", "after_json"),
        "request_id",
    )
    empty_list_hint = "Nothing was done yet. Every verb of an operator, a tenant or the system leaves an entry here."

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        """With ages by the database's clock."""
        queryset: QuerySet[AuditEntry] = super().get_queryset(request)
        return queryset.annotate(age_seconds=SecondsSince("at"))

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """The audit links of other pages filter by subject."""
        return lookup == "subject" or super().lookup_allowed(lookup, value, request)

    @admin.display(description="at (UTC)", ordering="id")
    def when(self, entry: AuditEntry) -> SafeString:
        return render.moment(entry.at)

    @admin.display(description="age")
    def ago(self, entry: AuditEntry) -> SafeString:
        return render.age(getattr(entry, "age_seconds", None), entry.at)

    @admin.display(description="verb", ordering="verb")
    def verb_badge(self, entry: AuditEntry) -> SafeString:
        return render.verb_badge(entry.verb)

    @admin.display(description="subject", ordering="subject")
    def subject_cell(self, entry: AuditEntry) -> SafeString | str:
        return format_html("{} {}", entry.subject_type, subject_link(entry))

    @admin.display(description="change")
    def change(self, entry: AuditEntry) -> SafeString | str:
        return change_text(entry) or render.EMPTY

    @admin.display(description="before")
    def before_json(self, entry: AuditEntry) -> SafeString:
        return render.json_block(entry.before)

    @admin.display(description="after")
    def after_json(self, entry: AuditEntry) -> SafeString:
        return render.json_block(entry.after)


def subject_link(entry: AuditEntry) -> SafeString | str:
    """To the subject's page, where its kind has one."""
    if entry.subject_type in SUBJECT_PAGES and entry.subject.isdigit():
        return render.link(SUBJECT_PAGES[entry.subject_type], int(entry.subject), entry.subject)
    if entry.subject_type in SUBJECT_LISTS:
        return render.list_link(SUBJECT_LISTS[entry.subject_type], entry.subject, q=entry.subject)
    return entry.subject


def change_text(entry: AuditEntry) -> str:
    """Old and new values in a line."""
    before, after = entry.before or {}, entry.after or {}
    parts = []
    for name in dict.fromkeys((*before, *after)):
        old, new = _shown(before.get(name)), _shown(after.get(name))
        if name in before:
            parts.append(f"{name.replace('_', ' ')} {old} → {new}")
        elif new != NOTHING:
            parts.append(f"{name.replace('_', ' ')} {new}")
    return ", ".join(parts)[:160]


NOTHING = "none"


def _shown(value: object) -> str:
    if value in (None, "", [], {}):
        return NOTHING
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


class _SkinnedActions(ModelAdmin):
    """Keeps the other app's own pages; only the looks are ours."""

    change_form_template = "admin/change_form.html"
    list_filter_submit = False


@admin.register(User)
class UserAdmin(_UserAdmin, _SkinnedActions):
    """People who sign in here. What they may do comes from their roles."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "role_names", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser", "groups")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """Roles in one further statement, not one a row."""
        queryset: QuerySet[User] = super().get_queryset(request)
        return queryset.prefetch_related("groups")

    @admin.display(description="roles")
    def role_names(self, user: User) -> SafeString | str:
        return ", ".join(group.name for group in user.groups.all()) or render.EMPTY


@admin.register(Group)
class GroupAdmin(auth_admin.GroupAdmin, _SkinnedActions):
    """Roles: viewer, operator, quota manager and admin come with the product; more may be added."""


@admin.register(Success)
class DoneTaskAdmin(_TaskAdmin, _SkinnedActions):
    """Background tasks that went well. Resubmitting is left out: it asks for no permission, and sweeps come again."""

    actions = ()


@admin.register(Failure)
class FailedTaskAdmin(_FailAdmin, _SkinnedActions):
    """Background tasks that did not."""

    actions = ()


@admin.register(Schedule)
class SkinnedScheduleAdmin(_ScheduleAdmin, _SkinnedActions):
    """What runs regularly."""


@admin.register(OrmQ)
class SkinnedQueueAdmin(_QueueAdmin, _SkinnedActions):
    """What waits for a worker."""
