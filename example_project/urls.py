from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("example_project.provider.urls")),
    path("admin/", admin.site.urls),
    path("semq/", include("django_semq.api.urls")),
]
