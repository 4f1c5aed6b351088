from contextlib import suppress

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls)]

with suppress(ModuleNotFoundError):
    urlpatterns.append(path("semq/", include("django_semq.api.urls")))
