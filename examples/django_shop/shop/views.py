from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import write_invoice


@csrf_exempt  # so that curl may order; a form of yours keeps the protection
@require_POST
@transaction.atomic
def place(request: HttpRequest) -> JsonResponse:
    """Store an order. Headrace sends its job after the commit, so the worker finds the order."""
    order = Order.objects.create(item=request.POST["item"])
    write_invoice.enqueue(order.pk)
    return JsonResponse({"order": order.pk}, status=202)


def show(_request: HttpRequest, number: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=number)
    return JsonResponse({"item": order.item, "invoice": order.invoice or None})


urlpatterns = [path("orders", place), path("orders/<int:number>", show)]
