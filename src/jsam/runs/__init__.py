"""Runs of training on disk: settings, noise plan, folder, settlement and what may be published. No torch here."""
