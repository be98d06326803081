"""The client: connections, queues and jobs, sharded queues; asynchronous and synchronous."""
