"""The whole way of an offer on one machine: servers, a model, offers, a worker, the account."""
