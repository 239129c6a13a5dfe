"""Headrace finds the module ``tasks`` of each app."""

from headrace.contrib.django import app
from shop.models import Order


@app.task(retries=3, timeout=30)
def write_invoice(number: int) -> None:
    """Write the invoice of an order. A second start writes the same, so a retry is harmless."""
    order = Order.objects.get(pk=number)
    order.invoice = f"invoice {order.pk}: {order.item}"
    order.save(update_fields=["invoice"])
