"""A sign-up form behind Django: each address is greeted once.

gunicorn django_site:application --preload --workers 2

With --preload the filter is made before gunicorn forks its workers, and all of them use it. In a
project with settings.py the filter stands in a module of an app.
"""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from bloomlock import BloomFilter

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["localhost", "127.0.0.1"])
django.setup()
greeted = BloomFilter("greeted", capacity=1_000_000)


@require_POST
def sign_up(request: HttpRequest, address: str) -> JsonResponse:
    """Greet an address that is new."""
    is_new = greeted.add(address.casefold())
    if is_new:
        print(f"worker {os.getpid()} greets {address}", flush=True)
    return JsonResponse({"new": is_new})


urlpatterns = [path("sign-up/<address>", sign_up)]
application = get_wsgi_application()
