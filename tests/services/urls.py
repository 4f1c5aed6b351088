from django.urls import include, path

urlpatterns = [path("holder/", include("django_semq.api.holder_urls"))]
