"""The product's settings and one more app, whose loops the tests watch."""

from controlplane.settings import *  # noqa: F403 - settings are a namespace
from controlplane.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.leadership.counting"]
