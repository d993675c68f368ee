"""What results look like: tables, plain text and figures. Everything here reads results, nothing solves."""
