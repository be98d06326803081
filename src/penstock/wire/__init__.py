"""Key names, Lua scripts and their loader. This layer names and parses; it decides nothing."""
