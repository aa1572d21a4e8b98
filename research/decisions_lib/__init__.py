"""The parts of `make decisions`: noise, the shipped rules on arrays, other tools' rules, a page."""
