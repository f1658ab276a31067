"""Django settings: everything an operator may vary comes from the environment (docs/settings.md).

`DATABASE_URL` may point at PgBouncer in transaction mode; then `DATABASE_DIRECT_URL` names the server itself, and
nothing here uses prepared statements or server-side cursors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import environ

from controlplane.core.environment import control_plane_values, database, secret, storages
from controlplane.skin import UNFOLD  # noqa: F401 - a setting, read by the admin's skin

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()

DEBUG = False
SECRET_KEY = secret(env, "SECRET_KEY")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    # First: its commands and templates stand before those of the apps it builds on (qcluster checks migrations).
    "controlplane",
    "unfold.apps.BasicAppConfig",
    "unfold.contrib.filters",
    "controlplane.admin_config.FleetAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_q",
    "controlplane.core",
    "admission",
    "leadership",
    "runners",
    "recovery",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "controlplane.request_id.RequestIdMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
WSGI_APPLICATION = "controlplane.wsgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {"default": database(env)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS_URL = env.str("REDIS_URL", default="")

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "admin:login"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True
FORMAT_MODULE_PATH = "controlplane.formats"

STATIC_URL = "static/"
# Finders serve the static files in place: one start-up step and one directory less to go stale for `up`.
WHITENOISE_USE_FINDERS = True

SESSION_COOKIE_HTTPONLY = True
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
# Behind TLS (the usual case outside the demo) say so, and cookies and redirects follow.
HTTPS = env.bool("HTTPS", default=False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if env.bool("TRUST_PROXY", default=False) else None

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["admission.api.authentication.TokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "EXCEPTION_HANDLER": "controlplane.api.problems.exception_handler",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Wharfinger",
    "DESCRIPTION": "Admits, runs and recovers container jobs for many tenants.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "OAS_VERSION": "3.1.1",  # pydantic writes JSON Schema of 2020, which 3.0 does not take
    "ENUM_NAME_OVERRIDES": {
        "RetryOrFailEnum": ["retry", "fail"],
        "RecoveryOutcomeEnum": "recovery.models.Outcome",
    },
    "SCHEMA_PATH_PREFIX": r"/api/v1",
}

Q_CLUSTER: dict[str, Any] = {
    "name": "wharfinger",
    "orm": "default",
    # The queue judged by the database's clock. What is due is decided by the leader (leadership), not by schedules.
    "broker_class": "leadership.broker.DatabaseClockBroker",
    # Two, so that a long sweep does not keep the deadlines waiting.
    "workers": 2,
    # `retry` must exceed `timeout`, or a slow task is handed out a second time while it still runs.
    "timeout": 120,
    "retry": 180,
    "max_attempts": 1,
    "ack_failures": True,
    "save_limit": 250,
    "poll": 0.5,
    "catch_up": False,
}

# Notifications: smtp://user:password@host:port, or consolemail:// (the default: they are printed).
vars().update(env.email_url("EMAIL_URL", default="consolemail://"))
DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", default="wharfinger@localhost")

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "controlplane.core.logs.JsonFormatter"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "json"}},
    "root": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "INFO")},
}

CONTROLPLANE = control_plane_values(env)
STORAGES = storages(CONTROLPLANE)
