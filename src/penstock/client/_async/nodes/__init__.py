"""The nodes of a client, each a server or a cluster, and what they agree on."""
