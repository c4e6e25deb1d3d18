"""Classic groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and the rebalance behind them."""
