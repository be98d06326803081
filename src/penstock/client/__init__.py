"""The client: connections, nodes, queues with their routes, jobs; asynchronous and synchronous."""
