"""Key names, Lua scripts and their loader, reply codes. This layer names and parses; it decides nothing."""
