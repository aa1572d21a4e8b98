"""What our adapters use of packages that this project cannot install, against their own sources."""
