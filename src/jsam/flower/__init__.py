"""The same contract carried out by a real federation: clients that hold their data, add their own noise and keep books.

What a client trusts (`terms`, `verification`, `policy`, `client_ledger`, `noise`) needs no Flower and no torch, so that
it can be read, run and tested alone.
"""
