"""The whole way of an offer on one machine: servers, a model, offers, a worker, the account."""


class DemoError(Exception):
    """The demo cannot go on; the message is one line."""
