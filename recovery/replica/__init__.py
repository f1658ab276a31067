"""The replica process: it beats, admits, executes, sweeps deadlines, and reconciles dead peers."""
