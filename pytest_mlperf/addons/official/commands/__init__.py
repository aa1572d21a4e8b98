"""The commands of this add-on."""
