"""Tokens of OAuth 2: signed ones and their keys, their claims, and how a client gets one."""
