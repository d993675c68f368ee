"""Mechanisms of other papers and of textbooks, behind the same protocol, to be compared with ours: one file each.

docs/rivals.md says where each rule comes from, what it claims and what the audit finds.
"""
