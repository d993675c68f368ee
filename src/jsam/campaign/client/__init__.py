"""The client's side: what it hears of, judges, accepts, releases and writes down."""
