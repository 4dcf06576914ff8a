"""A tool that runs programs: it is there where both parts are, tools and programs."""
