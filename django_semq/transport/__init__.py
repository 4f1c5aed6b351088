"""Between client and holder: one interface, one module for each way of reaching a holder."""
