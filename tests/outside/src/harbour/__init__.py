"""A channel, a tool, a store, a provider and a summariser for nanoloop."""
