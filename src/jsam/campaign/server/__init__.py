"""The server's side: reports, offers, rounds, accounts, and the store that a killed server goes on from."""
