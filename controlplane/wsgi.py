"""The web server's entry point."""

import os

from django.core.wsgi import get_wsgi_application

from controlplane.core.web_sign import showing
from controlplane.management.server import refuse_unless_ready

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

application = showing(get_wsgi_application())
refuse_unless_ready()
