"""Jobs compiled for devices that are not here: targets, the compilers in a process of their own, and what to expect there."""
