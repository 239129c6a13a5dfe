"""The process that runs user code, in its four kinds."""
