"""What the stack runs on: PostgreSQL, Redis, the container engine, images, ports and folders."""
