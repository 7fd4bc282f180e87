"""Assembly: what is started, with which settings. May import anything; nobody imports it."""
