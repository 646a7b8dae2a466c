"""What a group's sensor does at a tick: looks, tells, judges, adds partitions, requests runs."""
