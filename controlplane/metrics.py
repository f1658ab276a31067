"""`/metrics` for Prometheus: what every app's `metrics.py` reads from the database (rule O4)."""

from __future__ import annotations

import hmac
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version

import django
from django.apps import apps
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import module_has_submodule
from django.views.decorators.cache import never_cache
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from admission.services.operator_tokens import is_operator_token
from controlplane.core.conf import conf
from controlplane.core.metrics import Metric

log = logging.getLogger(__name__)

PREFIX = "controlplane_"
KEPT_SECONDS = 2.0
"""Several scrapers at once cost one reading; no number is older than this."""

Collect = Callable[[], Iterable[Metric]]


@lru_cache(maxsize=1)
def collectors() -> list[Collect]:
    """The `collect` of each app that has a `metrics.py`."""
    modules = [
        import_module(f"{config.name}.metrics")
        for config in apps.get_app_configs()
        if config.name != "controlplane" and config.module and module_has_submodule(config.module, "metrics")
    ]
    return [module.collect for module in modules if hasattr(module, "collect")]


def read_metrics() -> list[Metric]:
    """Everything, read now."""
    return [metric for collect in collectors() for metric in collect()]


class _Registered:
    """Metrics that were read, as the client library wants them."""

    def __init__(self, metrics: Iterable[Metric], seconds: float) -> None:
        self._metrics = list(metrics)
        self._seconds = seconds

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for metric in self._metrics:
            family = GaugeMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
            for each in metric.values:
                family.add_metric([each.labels[label] for label in metric.labels], each.value)
            yield family
        yield GaugeMetricFamily(PREFIX + "scrape_seconds", "How long the reading took.", value=self._seconds)
        info = GaugeMetricFamily(
            PREFIX + "build_info", "Versions of this process.", labels=["version", "python", "django"]
        )
        info.add_metric([version("wharfinger"), platform.python_version(), django.get_version()], 1)
        yield info


class _Kept:
    """The newest exposition of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = b""
        self._until = 0.0

    def read(self) -> bytes:
        """At most KEPT_SECONDS old. Raises DatabaseError."""
        with self._lock:
            if time.monotonic() >= self._until:
                began = time.monotonic()
                metrics = read_metrics()
                registry = CollectorRegistry()
                registry.register(_Registered(metrics, time.monotonic() - began))
                self._text = generate_latest(registry)
                self._until = began + KEPT_SECONDS
            return self._text


_kept = _Kept()


@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """The exposition; 401 without a token, 503 where the database does not answer: never a stale or partial one."""
    try:
        if not _may_read(request):
            return _asked_for_token()
        text = _kept.read()
    except DatabaseError:
        log.exception("metrics.unreadable")
        return HttpResponse("The database does not answer.\n", status=503, content_type="text/plain")
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


def _asked_for_token() -> HttpResponse:
    text = "Send 'Authorization: Bearer <token>': the one of CONTROLPLANE_METRICS_TOKEN, or an operator's.\n"
    answer = HttpResponse(text, status=401, content_type="text/plain")
    answer.headers["WWW-Authenticate"] = 'Bearer realm="wharfinger"'
    return answer


def _may_read(request: HttpRequest) -> bool:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        return False
    own = conf().metrics_token
    if own and hmac.compare_digest(token.encode(), own.encode()):
        return True
    return is_operator_token(token)
