"""HTTP of the service: connections, middleware, requests, schemas, errors."""
