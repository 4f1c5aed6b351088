"""Addresses and their names, such as `django_semq:item-list`, `item-detail`, `item-release`."""

from __future__ import annotations

from rest_framework.routers import SimpleRouter

from django_semq.api import views

app_name = "django_semq"

router = SimpleRouter(use_regex_path=False)
router.register("items", views.ItemViewSet, basename="item")
router.register("keys", views.KeyViewSet, basename="key")
router.register("grants", views.GrantViewSet, basename="grant")
router.register("leases", views.LeaseViewSet, basename="lease")

urlpatterns = router.urls
