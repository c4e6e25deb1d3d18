"""Who may come in and what they may do: principals, authentication, authorization, quotas."""
