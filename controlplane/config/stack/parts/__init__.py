"""The parts of the stack: PostgreSQL, Redis, the container engine, images, ports and folders."""
