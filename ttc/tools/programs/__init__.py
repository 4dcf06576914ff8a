"""A tool that runs programs, for which both parts are needed, tools and programs."""
